"""Raw bytes on a socket, for requests that no well-behaved client would send."""

from __future__ import annotations

import select
import socket
from collections.abc import Mapping
from http.client import HTTPResponse

import httpx
from support.polling import WAIT_TIMEOUT_SECONDS
from support.service import Service

CLOSED_ERRORS = (ConnectionResetError, BrokenPipeError)
"""How a connection fails when the other side has closed it."""


def connect(service: Service) -> socket.socket:
    """Open a connection to a service; the caller closes it."""
    url = httpx.URL(service.url)
    return socket.create_connection((url.host, url.port or 80), timeout=WAIT_TIMEOUT_SECONDS)


def head(first: str, *lines: str, host: str | None = "localhost") -> bytes:
    """Return the head of a request; without `host`, it has no Host header."""
    named = [] if host is None else [f"Host: {host}"]
    return "".join(f"{line}\r\n" for line in (f"{first} HTTP/1.1", *named, *lines, "")).encode("utf-8")


def answer(connection: socket.socket, method: str = "GET") -> httpx.Response:
    """Read an answer."""
    reply = HTTPResponse(connection, method=method)
    try:
        reply.begin()
        return httpx.Response(reply.status, headers=reply.getheaders(), content=reply.read())
    finally:
        reply.close()


def send(service: Service, *parts: bytes, method: str = "GET") -> httpx.Response:
    """Send bytes over a new connection and read the answer."""
    with connect(service) as connection:
        for part in parts:
            connection.sendall(part)
        return answer(connection, method)


def ask(
    service: Service, method: str, path: str, headers: Mapping[str, str], body: str | None = None
) -> httpx.Response:
    """Send a request in one piece over a new connection.

    A client that sends the body after the head may find the connection closed by an early error answer.
    """
    lines = [f"{name}: {value}" for name, value in headers.items()]
    named = None if "host" in headers else "localhost"
    data = b"" if body is None else body.encode()
    length = [] if body is None else [f"Content-Length: {len(data)}"]
    return send(service, head(f"{method} {path}", *lines, *length, host=named) + data, method=method)


def flood(connection: socket.socket, piece: bytes, most: int) -> int:
    """Send the same chunk until an answer arrives or the limit is reached, and return how many bytes were sent."""
    sent = 0
    while sent < most:
        readable, writable, _ = select.select([connection], [connection], [], WAIT_TIMEOUT_SECONDS)
        assert readable or writable, "the service neither reads nor answers"
        if readable:
            break
        try:
            sent += connection.send(piece)
        except CLOSED_ERRORS:
            break
    return sent


def is_closed(connection: socket.socket) -> bool:
    """Wait until the other side sends something or closes, and return whether it closed."""
    try:
        return connection.recv(1) == b""
    except CLOSED_ERRORS:
        return True
