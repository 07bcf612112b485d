"""A server of ours, and clients that speak to it."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess

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
    command = [ours.shardloom, "--json", "serve", str(name), "--port", "0", *map(str, options)]
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
