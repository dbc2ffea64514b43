"""A proposer that keeps its callers waiting until it is told to pass them on."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from support.example import Example


class Held:
    """The proposer, and how many turns have reached it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.turns = 0
        self._open = threading.Event()

    def let_go(self) -> None:
        """Pass on whatever waits and whatever comes."""
        self._open.set()

    def wait(self) -> None:
        """Wait until callers are passed on."""
        self._open.wait()


class Quiet(ThreadingHTTPServer):
    """Says nothing about callers that went away."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def held_proposer(example: Example) -> Iterator[Held]:
    """Serve a proposer in front of the reflector: it takes every turn and answers none before it is let go."""
    upstream = urlsplit(example.reflector_url)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.pass_on(b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            held.turns += 1
            held.wait()
            if not is_over.is_set():
                self.pass_on(body)

        def pass_on(self, body: bytes) -> None:
            asked = http.client.HTTPConnection(str(upstream.hostname), upstream.port or 80, timeout=30)
            with contextlib.closing(asked), contextlib.suppress(OSError):
                asked.request(self.command, self.path, body or None, {"content-type": "application/json"})
                reply = asked.getresponse()
                payload = reply.read()
                self.send_response(reply.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                # Whoever asked may have gone away.
                self.wfile.write(payload)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the base class)
            """Say nothing."""

    is_over = threading.Event()
    server = Quiet(("127.0.0.1", 0), Handler)
    held = Held(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield held
    finally:
        is_over.set()
        held.let_go()
        server.shutdown()
        server.server_close()
        thread.join()
