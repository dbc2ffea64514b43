"""A server in front of another one: it holds the calls that matter until a test lets them through."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from support.example import Example
from support.waiting import PATIENCE


class Gate:
    """The server, how many calls it was to hold have reached it, and how many of them were answered."""

    def __init__(self, url: str, free: int) -> None:
        self.url = url
        self.arrived = 0
        self.answered = 0
        self._free = free
        self._is_open = False
        self._changed = threading.Condition()

    def wait_for(self, arrived: int) -> None:
        """Wait until so many calls have reached it."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.arrived >= arrived, PATIENCE), f"{self.arrived} calls came"

    def open(self) -> None:
        """Let through the calls that wait and those that come."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def pass_through(self) -> None:
        """Take a call, and return when it may go on: the first ones at once, the others once the gate is open."""
        with self._changed:
            self.arrived += 1
            number = self.arrived
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_open or number <= self._free)
            self.answered += 1


class Quiet(ThreadingHTTPServer):
    """Says nothing about callers that went away."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def gate(upstream: str, *, holds: str = "", free: int = 0) -> Iterator[Gate]:
    """Serve in front of `upstream`; POSTs whose path ends with `holds` wait, but for the first `free` of them."""
    parts = urlsplit(upstream)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.pass_on(b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if urlsplit(self.path).path.endswith(holds):
                held.pass_through()
            if not is_over.is_set():
                self.pass_on(body)

        def pass_on(self, body: bytes) -> None:
            asked = http.client.HTTPConnection(str(parts.hostname), parts.port or 80, timeout=PATIENCE)
            with contextlib.closing(asked), contextlib.suppress(OSError):
                asked.request(self.command, self.path, body or None, {"content-type": "application/json"})
                reply = asked.getresponse()
                payload = reply.read()
                self.send_response(reply.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                # The caller may have gone away.
                self.wfile.write(payload)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the base class)
            """Say nothing."""

    is_over = threading.Event()
    server = Quiet(("127.0.0.1", 0), Handler)
    held = Gate(f"http://127.0.0.1:{server.server_port}{parts.path}", free)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield held
    finally:
        is_over.set()
        held.open()
        server.shutdown()
        server.server_close()
        thread.join()


def held_proposer(example: Example) -> contextlib.AbstractContextManager[Gate]:
    """Serve a proposer that takes every turn and answers none before the gate is open."""
    return gate(example.reflector_url)


def held_container(example: Example, free: int = 1) -> contextlib.AbstractContextManager[Gate]:
    """Serve a container that answers the first rollouts, and no more before the gate is open."""
    return gate(example.container_url, holds="/rollouts", free=free)
