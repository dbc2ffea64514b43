"""A small HTTP/1.1 server on an event loop: keep-alive, JSON bodies, bounded sizes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable
from typing import Any, Callable, NamedTuple, Union

MAX_HEADER_BYTES = 64 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024
REASONS = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
}
REASONS.update({409: "Conflict", 411: "Length Required", 413: "Payload Too Large", 415: "Unsupported Media Type"})
REASONS.update({422: "Unprocessable Content", 429: "Too Many Requests", 431: "Header Too Large"})
REASONS.update({500: "Internal Server Error", 503: "Service Unavailable"})


class Request(NamedTuple):
    """A request. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Response(NamedTuple):
    """A response with a JSON body."""

    status: int
    body: bytes
    headers: str = ""


Answer = Union[Response, Awaitable[Response]]
Handler = Callable[[Request], Answer]


class Connection(asyncio.Protocol):
    """One connection. Requests are answered in order, one at a time."""

    def __init__(self, handler: Handler, refuse: Callable[[int, str], Response], connections: set[Connection]) -> None:
        self._handler = handler
        self._refuse = refuse
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._is_busy = False
        self._is_last = False
        self._head: tuple[Request, int, bool] | None = None
        """A request without its body, the length of the body, and whether the connection ends after it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send small answers at once."""
        self._transport = transport  # type: ignore[assignment]
        self._connections.add(self)
        channel = transport.get_extra_info("socket")
        if channel is not None:
            channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Forget the connection. A rollout that it waits for continues."""
        self._transport = None
        self._connections.discard(self)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Answer a request as soon as it is complete."""
        self._buffer += data
        if not self._is_busy:
            self._read()
        elif len(self._buffer) > MAX_HEADER_BYTES + MAX_BODY_BYTES:
            self.close()

    def _read(self) -> None:
        while not self._is_busy and self._transport is not None and not self._is_last:
            if self._head is None and not self._read_head():
                return
            if self._head is None:
                return
            request, length, is_last = self._head
            if len(self._buffer) < length:
                return
            body = bytes(self._buffer[:length])
            del self._buffer[:length]
            self._head = None
            self._answer(request._replace(body=body), is_last=is_last)

    def _read_head(self) -> bool:
        """Read the header of a request. Returns false until all of it has arrived, and after an error."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or end > MAX_HEADER_BYTES:
            if len(self._buffer) > MAX_HEADER_BYTES:
                self._fail(431, f"the header is larger than {MAX_HEADER_BYTES} bytes")
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        start = lines[0].split(" ")
        if len(start) != 3 or not start[2].startswith("HTTP/1."):
            return self._fail(400, "this is not an HTTP/1.1 request")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers:
            return self._fail(411, "send a content-length instead of a transfer-encoding")
        if not (length.isascii() and length.isdigit()):
            return self._fail(400, "the content-length is not a number")
        if int(length) > MAX_BODY_BYTES:
            return self._fail(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        if headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        is_last = start[2] == "HTTP/1.0" or headers.get("connection", "").lower() == "close"
        self._head = (Request(start[0], start[1].partition("?")[0], headers, b""), int(length), is_last)
        return True

    def _fail(self, status: int, detail: str) -> bool:
        self._is_last = True
        self._write(self._refuse(status, detail))
        return False

    def _answer(self, request: Request, *, is_last: bool) -> None:
        answer = self._handler(request)
        if isinstance(answer, Response):
            self._is_last = is_last
            self._write(answer)
            return
        self._is_busy = True
        task = asyncio.ensure_future(answer)

        def finish(done: asyncio.Future[Response]) -> None:
            self._is_busy = False
            self._is_last = is_last
            error = done.exception() if not done.cancelled() else None
            self._write(self._refuse(500, str(error)) if error or done.cancelled() else done.result())
            self._read()

        task.add_done_callback(finish)

    def _write(self, response: Response) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        reason = REASONS.get(response.status, "")
        close = "connection: close\r\n" if self._is_last else ""
        head = (
            f"HTTP/1.1 {response.status} {reason}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(response.body)}\r\n{response.headers}{close}\r\n"
        )
        self._transport.write(head.encode("latin-1") + response.body)
        if self._is_last:
            self._transport.close()


async def listen(
    handler: Handler, refuse: Callable[[int, str], Response], channel: socket.socket
) -> tuple[Any, set[Connection]]:
    """Serve a listening socket. Returns the server and its open connections."""
    connections: set[Connection] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(handler, refuse, connections), sock=channel)
    return server, connections
