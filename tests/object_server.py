"""A small HTTP server of objects on the loopback interface, which can fail in the ways that object stores do."""

from __future__ import annotations

import hashlib
import http.server
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

#: What becomes of a request: (method, name, number of the request for this object) -> a fault, or "".
Faults = Callable[[str, str, int], str]
#: The query of a redirect.
SIGNATURE = "hidden-signature"
MOVED = f"?X-Amz-Signature={SIGNATURE}"


class ObjectServer:
    """Serves objects by name, with ranges and etags.

    Faults: "500", "503", "403", "404": that status. "cut": the body ends after a half; "reset": by a reset; "stall":
    the rest does not come. "slow": it comes slowly. "wrong": one byte of it is flipped. "hang": no answer until the
    server stops. "drop": the connection is closed. "moved": a redirect, with a query, to where it is served.
    "echo": 403, with the request's headers in the body, as some proxies have it.
    """

    def __init__(self, objects: dict[str, bytes], faults: Faults | None = None, port: int = 0) -> None:
        self.objects = dict(objects)
        self.faults: Faults = faults or (lambda method, name, number: "")
        self.gets: Counter[str] = Counter()
        self.heads: Counter[str] = Counter()
        self.bytes_sent = 0
        self.stopped = threading.Event()
        self.lock = threading.Lock()
        owner = self

        class Handler(_Handler):
            server_of = owner

        self._server = _Server(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/data"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> ObjectServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(http.server.ThreadingHTTPServer):
    def shutdown_request(self, request: Any) -> None:
        self.close_request(request)  # a shutdown before it would be a proper end of what is reset


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: ObjectServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(self.server_of.heads)

    def do_GET(self) -> None:
        self._answer(self.server_of.gets)

    def _answer(self, counter: Counter[str]) -> None:
        owner = self.server_of
        name, moved, _ = unquote(self.path).removeprefix("/data/").partition(MOVED)
        with owner.lock:
            counter[name] += 1
            fault = owner.faults(self.command, name, counter[name])
        if fault == "hang":
            owner.stopped.wait()
            fault = "drop"
        if fault == "drop" or owner.stopped.is_set():
            self.close_connection = True
            return
        if fault == "moved" and not moved:
            self._status(307, self.path + MOVED)
            return
        if fault == "echo":
            self._status(403, body=f"<Error><Code>AccessDenied</Code>\n{self.headers}</Error>".encode())
            return
        if fault.isdecimal():
            self._status(int(fault))
            return
        body = owner.objects.get(name)
        if body is None:
            self._status(404)
            return
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        if self.headers.get("If-Match", etag) != etag:
            self._status(412)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            part, begin = body, 0
            self.send_response(200)
        else:
            begin, last = int(asked[1]), int(asked[2] or len(body) - 1)
            part = body[begin : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{begin + len(part) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", etag)
        self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "wrong" and part:
            part = bytes([part[0] ^ 1]) + part[1:]
        if fault in ("cut", "reset", "stall"):
            part = part[: len(part) // 2]
            self.close_connection = True
        step = 16 << 10 if fault == "slow" else 1 << 20
        for at in range(0, len(part), step):
            if fault == "slow":
                time.sleep(0.01)  # a slow connection
            try:
                self.wfile.write(part[at : at + step])
            except OSError:
                self.close_connection = True
                return
            with owner.lock:
                owner.bytes_sent += len(part[at : at + step])
        if fault == "stall":
            owner.stopped.wait()
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _status(self, code: int, location: str = "", body: bytes = b"") -> None:
        self.send_response(code)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
