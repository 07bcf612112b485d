"""A web server on this machine that serves the files of a folder, in ranges as object stores do."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType


class RangeServer:
    """Serves a folder for as long as the context lasts."""

    def __init__(self, folder: Path) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(has_body=True)

            def do_HEAD(self) -> None:
                self._answer(has_body=False)

            def log_message(self, *_arguments: object) -> None:
                pass

            def _answer(self, has_body: bool) -> None:
                path = folder / self.path.lstrip("/")
                if not path.is_file():
                    self.send_response(404)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                body = whole = path.read_bytes()
                asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                if asked:
                    first, last = int(asked[1]), min(int(asked[2] or len(whole)), len(whole) - 1)
                    body = whole[first : last + 1]
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {first}-{last}/{len(whole)}")
                else:
                    self.send_response(200)
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if has_body:
                    self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> RangeServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
