"""API servers, clients, and a proxy that counts requests."""

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

# Time limit to start and to stop a server.
SECONDS = 60


class Server:
    def __init__(self, process, address):
        self.process, self.url, self.model = process, address["url"], address["model"]

    def client(self, kind=openai.OpenAI, key="none"):
        """A client without retries, so that a late answer is a failure."""
        return kind(base_url=self.url, api_key=key, max_retries=0, timeout=SECONDS)

    def stop(self, how=signal.SIGTERM):
        """Stops the server; returns its exit status."""
        self.process.send_signal(how)
        return self.process.wait(SECONDS)

    def raw(self, sent, then="wait"):
        """Sends bytes; returns the status line of the response, if any. `then="break off"` closes the request early."""
        host, port = self.url.removeprefix("http://").removesuffix("/v1").rsplit(":", 1)
        answer = b""
        with socket.create_connection((host, int(port)), timeout=SECONDS) as stream, contextlib.suppress(OSError):
            stream.sendall(sent)
            if then == "break off":
                stream.shutdown(socket.SHUT_WR)
            while chunk := stream.recv(1 << 16):
                answer += chunk
        return answer.split(b"\r\n")[0].decode(errors="replace")

    def post(self, body, headers=b"", path=b"/v1/completions"):
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n"
        return self.raw(head % (path, headers, len(body)) + body)


@contextlib.contextmanager
def serve(ours, name, *options, **environment):
    command = [ours.weightloom, "--json", "serve", str(name), "--port", "0", *map(str, options)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=os.environ | environment)
    try:
        ready, _, _ = select.select([process.stdout], [], [], SECONDS)
        line = process.stdout.readline() if ready else ""
        if not line:
            process.kill()
            raise RuntimeError(f"the server did not start: {process.communicate()[1].strip()}")
        yield Server(process, json.loads(line))
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def llama_cpp_python(config, models, key):
    """The server of llama-cpp-python, with models by name. Yields its URL."""
    port = free_port()
    settings = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "type_k": 0, "type_v": 0, "verbose": False}
    entries = [settings | {"model": str(path), "model_alias": name} for name, path in models.items()]
    config.write_text(json.dumps({"host": "127.0.0.1", "port": port, "api_key": key, "models": entries}))
    with listening([sys.executable, "-m", "llama_cpp.server", "--config_file", str(config)], port) as root:
        yield root


@contextlib.contextmanager
def llama_server(path, name):
    """The server of llama.cpp, from xllamacpp. Yields its URL."""
    port = free_port()
    script = pathlib.Path(__file__).with_name("llama_server.py")
    with listening([sys.executable, str(script), str(path), name, str(port)], port) as root:
        yield root


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def listening(command, port):
    """Starts a process and waits until the port is open."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    # Drain standard error, so that the process never blocks on a full pipe.
    errors = []
    reader = threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True)
    reader.start()
    try:
        until = time.monotonic() + SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server did not start: {''.join(errors[-20:]).strip()}")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        reader.join()


class Proxy:
    """Forwards requests to a server, counts them, and runs an action at one of them.

    If the server does not answer, the proxy closes the connection.
    """

    def __init__(self, target):
        self.target, self.asked, self.answered = target, 0, 0
        self.at, self.then, self.lock = None, None, threading.Lock()

    def when(self, asked, then):
        """Calls `then` at request number `asked`, before forwarding it."""
        self.at, self.then = asked, then

    def forward(self, handler):
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
            content = answer.read()
        except (OSError, http.client.HTTPException):
            handler.close_connection = True
            return
        finally:
            server.close()
        with self.lock:
            self.answered += answer.status == 200
            # Keys that only some servers know are tried once, and refused by ours.
            self.asked -= answer.status == 400
        handler.send_response(answer.status)
        handler.send_header("Content-Type", answer.headers["Content-Type"])
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


@contextlib.contextmanager
def proxied(target):
    """Yields a proxy and its URL."""
    proxy = Proxy(target)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            proxy.forward(self)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield proxy, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
