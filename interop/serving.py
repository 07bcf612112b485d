"""Servers, ours and others, clients that speak to them, and what stands between both."""

import contextlib
import http.client
import http.server
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import openai

# Until a server listens, and until it has ended.
SECONDS = 60


class Server:
    def __init__(self, process, address):
        self.process, self.url, self.model = process, address["url"], address["model"]

    def client(self, kind=openai.OpenAI, key="none"):
        """Nothing is tried twice: an answer that comes late is a fault."""
        return kind(base_url=self.url, api_key=key, max_retries=0, timeout=SECONDS)

    def end(self, how=signal.SIGTERM):
        """Tells it to end; returns with what it ended."""
        self.process.send_signal(how)
        return self.process.wait(SECONDS)

    def raw(self, sent, then="wait"):
        """The first line of what is answered to these bytes, or nothing. `then` they may "break off"."""
        host, port = self.url.removeprefix("http://").removesuffix("/v1").rsplit(":", 1)
        answer = b""
        with socket.create_connection((host, int(port)), timeout=SECONDS) as stream, contextlib.suppress(OSError):
            stream.sendall(sent)
            if then == "break off":
                stream.shutdown(socket.SHUT_WR)
            while part := stream.recv(1 << 16):
                answer += part
        return answer.split(b"\r\n")[0].decode(errors="replace")

    def post(self, body, headers=b"", path=b"/v1/completions"):
        head = b"POST %s HTTP/1.1\r\nHost: here\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n"
        return self.raw(head % (path, headers, len(body)) + body)


@contextlib.contextmanager
def served(ours, name, *options, **environment):
    command = [ours.weightloom, "--json", "serve", str(name), "--port", "0", *map(str, options)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=os.environ | environment)
    try:
        ready, _, _ = select.select([process.stdout], [], [], SECONDS)
        line = process.stdout.readline() if ready else ""
        if not line:
            process.kill()
            raise RuntimeError(f"the server does not start: {process.communicate()[1].strip()}")
        yield Server(process, json.loads(line))
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def llama_cpp_python(config, models, key):
    """The server of llama-cpp-python, with models by their names. Yields its root."""
    port = free_port()
    settings = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "type_k": 0, "type_v": 0, "verbose": False}
    told = [settings | {"model": str(path), "model_alias": name} for name, path in models.items()]
    config.write_text(json.dumps({"host": "127.0.0.1", "port": port, "api_key": key, "models": told}))
    with listening([sys.executable, "-m", "llama_cpp.server", "--config_file", str(config)], port) as root:
        yield root


@contextlib.contextmanager
def llama_server(path, name):
    """The server of llama.cpp itself, as xllamacpp carries it. Yields its root."""
    port = free_port()
    script = pathlib.Path(__file__).with_name("llama_server.py")
    with listening([sys.executable, str(script), str(path), name, str(port)], port) as root:
        yield root


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def listening(command, port):
    """A process, once somebody listens at the port."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    # Read all the time, so that the process never waits for room to write.
    said = []
    reader = threading.Thread(target=lambda: said.extend(process.stderr), daemon=True)
    reader.start()
    try:
        until = time.monotonic() + SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server does not start: {''.join(said[-20:]).strip()}")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        reader.join()


class Between:
    """Stands between a client and a server: counts requests, and does something with one of them.

    A request that the server does not answer is not answered here either: the connection ends.
    """

    def __init__(self, target):
        self.target, self.asked, self.answered = target, 0, 0
        self.at, self.then, self.lock = None, None, threading.Lock()

    def when(self, asked, then):
        """Calls `then` when so many requests have come in all, before the last is passed on."""
        self.at, self.then = asked, then

    def take(self, handler):
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        with self.lock:
            self.asked += 1
            if self.asked == self.at:
                self.then()
        host = self.target.removeprefix("http://").removesuffix("/v1")
        server = http.client.HTTPConnection(host, timeout=SECONDS)
        try:
            headers = {name: handler.headers[name] for name in ("Content-Type", "Authorization") if name in handler.headers}
            server.request("POST", handler.path, body, headers)
            answer = server.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException):
            handler.close_connection = True
            return
        finally:
            server.close()
        with self.lock:
            self.answered += answer.status == 200
        handler.send_response(answer.status)
        handler.send_header("Content-Type", answer.headers["Content-Type"])
        handler.send_header("Content-Length", str(len(said)))
        handler.end_headers()
        handler.wfile.write(said)


@contextlib.contextmanager
def between(target):
    """Yields what stands there, and its root."""
    middle = Between(target)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            middle.take(self)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield middle, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
