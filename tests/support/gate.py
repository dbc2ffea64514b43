"""A gated proxy: it holds matching calls until a test opens the gate."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from support.example import Example
from support.polling import WAIT_TIMEOUT_SECONDS


class Gate:
    """The proxy, with the numbers of matching calls that arrived and that were answered."""

    def __init__(self, url: str, free: int) -> None:
        self.url = url
        self.arrived = 0
        self.answered = 0
        self._free = free
        self._is_open = False
        self._changed = threading.Condition()

    def wait_for(self, arrived: int) -> None:
        """Wait until this many matching calls have arrived."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.arrived >= arrived, WAIT_TIMEOUT_SECONDS), (
                f"{self.arrived} calls came"
            )

    def open(self) -> None:
        """Forward the held calls and all later ones."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def pass_through(self) -> None:
        """Count a call, and block until it may be forwarded: the first ones at once, others when the gate opens."""
        with self._changed:
            self.arrived += 1
            number = self.arrived
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_open or number <= self._free)
            self.answered += 1


class QuietServer(ThreadingHTTPServer):
    """A server that ignores errors of disconnected clients."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def gate(
    upstream: str,
    *,
    holds: str = "",
    free: int = 0,
    alter: Callable[[bytes], bytes] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> Iterator[Gate]:
    """Serve a proxy of `upstream`. POSTs whose path ends with `holds` wait, except for the first `free` of them.

    `alter` receives the answers to these POSTs and returns what the client is sent. `renamed` has the words of the
    upstream that have another form for the client, in both directions; JSON escapes no character of them.
    """
    parts = urlsplit(upstream)
    words = [(word.encode(), form.encode()) for word, form in (renamed or {}).items()]

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
            for word, form in words:
                body = body.replace(form, word)
            asked = http.client.HTTPConnection(str(parts.hostname), parts.port or 80, timeout=WAIT_TIMEOUT_SECONDS)
            with contextlib.closing(asked), contextlib.suppress(OSError):
                asked.request(self.command, self.path, body or None, {"content-type": "application/json"})
                reply = asked.getresponse()
                payload = reply.read()
                for word, form in words:
                    payload = payload.replace(word, form)
                if alter is not None and self.command == "POST" and urlsplit(self.path).path.endswith(holds):
                    payload = alter(payload)
                self.send_response(reply.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                # The client may have disconnected.
                self.wfile.write(payload)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the base class)
            """Log nothing."""

    is_over = threading.Event()
    server = QuietServer(("127.0.0.1", 0), Handler)
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


def gated_proposer(example: Example) -> contextlib.AbstractContextManager[Gate]:
    """Serve a proposer that answers no turn before the gate is open."""
    return gate(example.reflector_url)


def gated_container(example: Example, free: int = 1) -> contextlib.AbstractContextManager[Gate]:
    """Serve a container that answers the first rollouts, and the others once the gate is open."""
    return gate(example.container_url, holds="/rollouts", free=free)
