"""Headless Chromium over a pipe with the DevTools protocol. Needs no package."""

import base64
import contextlib
import fcntl
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

# Time limit of an answer and of the browser's exit.
SECONDS = 30
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# The browser reads commands from descriptor 3 and answers on 4; all others are closed.
LAUNCHER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.closerange(5, 1024)
os.execv(sys.argv[3], sys.argv[3:])
"""
# Protocol parameters of keys.
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " "), "ArrowRight": (39, "")}


def program():
    """The browser in WEIGHTLOOM_CHROMIUM, or one on the path."""
    named = os.environ.get("WEIGHTLOOM_CHROMIUM")
    if named:
        found = shutil.which(named)
        if not found:
            raise FileNotFoundError(f"WEIGHTLOOM_CHROMIUM names {named}, which is not an executable")
        return found
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        raise FileNotFoundError("there is no Chromium: install it, or name one in WEIGHTLOOM_CHROMIUM")
    return found


@contextlib.contextmanager
def browser():
    """Starts a browser with a temporary profile, and stops it in any case."""
    chosen = program()
    with tempfile.TemporaryDirectory(prefix="weightloom-chromium-", ignore_cleanup_errors=True) as profile:
        # Above the descriptors that the launcher uses.
        ends = [one for _ in range(2) for one in os.pipe()]
        commands_out, commands_in, answers_out, answers_in = (
            fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in ends)
        for one in ends:
            os.close(one)
        command = [sys.executable, "-c", LAUNCHER, str(commands_out), str(answers_in), chosen, *flags(profile)]
        with open(pathlib.Path(profile) / "said.txt", "wb") as said:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                                       pass_fds=(commands_out, answers_in), start_new_session=True)
        os.close(commands_out)
        os.close(answers_in)
        try:
            yield Browser(commands_in, answers_out)
        finally:
            os.close(commands_in)
            os.close(answers_out)
            end(process)


def flags(profile):
    usual = [
        "--headless", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run", "--disable-gpu",
        "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync",
        "--disable-dev-shm-usage", "--force-device-scale-factor=1", "--hide-scrollbars", "--mute-audio",
        # A proxy that does not exist makes network access fail.
        "--proxy-server=127.0.0.1:1",
    ]
    # The sandbox does not work for root.
    return usual + ["--no-sandbox"] * (os.geteuid() == 0) + ["about:blank"]


def end(process):
    """Waits for the browser to exit after its pipe is closed; kills its session otherwise."""
    try:
        process.wait(SECONDS / 6)
    except subprocess.TimeoutExpired:
        pass
    # Child processes may outlive it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(SECONDS)


class Browser:
    def __init__(self, commands, answers):
        self.commands, self.answers = commands, answers
        self.number, self.buffer, self.events = 0, b"", []
        for pipe in (commands, answers):
            os.set_blocking(pipe, False)

    def page(self):
        """Opens a page that records console output and requests."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility", "DOM"):
            page.call(f"{domain}.enable")
        return page

    def call(self, method, session=None, **parameters):
        """The result of a command."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        deadline = time.monotonic() + SECONDS
        self.send(json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0", deadline)
        while True:
            answer = self.receive(deadline, method)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def send(self, rest, deadline):
        while rest:
            _, ready, _ = select.select([], [self.commands], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser took no command for {SECONDS} s")
            rest = rest[os.write(self.commands, rest):]

    def receive(self, deadline, what):
        """The next message of any kind."""
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser did not answer to {what} within {SECONDS} s")
            part = os.read(self.answers, 1 << 16)
            if not part:
                raise RuntimeError(f"the browser ended before it answered to {what}")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def wait(self, session, method):
        """Waits for an event, including earlier ones."""
        deadline = time.monotonic() + SECONDS
        while not any(event["method"] == method and event.get("sessionId") == session for event in self.events):
            self.events.append(self.receive(deadline, method))


class Page:
    def __init__(self, browser, session, target):
        self.browser, self.session, self.target = browser, session, target

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def open(self, file):
        """Opens a file and clears the recorded events."""
        self.browser.events = []
        self.call("Page.navigate", url=pathlib.Path(file).absolute().as_uri())
        self.browser.wait(self.session, "Page.loadEventFired")

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)

    def events(self, method):
        """Parameters of all events of a kind since the page was opened."""
        return [event["params"] for event in self.browser.events
                if event["method"] == method and event.get("sessionId") == self.session]

    def evaluate(self, expression):
        """Evaluates a script in the page; returns its result."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def size(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, medium="", **features):
        """Emulates media: `media("print")`, `media(prefers_color_scheme="dark")`."""
        chosen = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=medium, features=chosen)

    def press(self, key):
        code, text = KEYS[key]
        common = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def read(self):
        """The accessibility tree in order: (role, name, properties) of all nodes that are not ignored."""
        nodes = {node["nodeId"]: node for node in self.call("Accessibility.getFullAXTree")["nodes"]}
        found, open_nodes = [], [next(iter(nodes.values()))]
        while open_nodes:
            node = open_nodes.pop()
            if not node.get("ignored"):
                properties = {one["name"]: one["value"].get("value") for one in node.get("properties", [])}
                found.append((node["role"]["value"], node.get("name", {}).get("value", ""), properties))
            open_nodes.extend(nodes[child] for child in reversed(node.get("childIds", [])) if child in nodes)
        return found

    def screenshot(self, file, most=4000):
        """A PNG of the page from its top, at most `most` pixels high."""
        area = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": area["width"], "height": min(area["height"], most), "scale": 1}
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        pathlib.Path(file).write_bytes(base64.b64decode(answer["data"]))
