"""Bytes on a socket, for what no well-behaved client would send."""

from __future__ import annotations

import select
import socket
from collections.abc import Mapping
from http.client import HTTPResponse

import httpx
from support.service import Service
from support.waiting import PATIENCE

ENDED = (ConnectionResetError, BrokenPipeError)
"""How a connection ends whose other side does not want to hear more."""


def dial(service: Service) -> socket.socket:
    """Open a connection to a service; whoever opens it closes it."""
    url = httpx.URL(service.url)
    return socket.create_connection((url.host, url.port or 80), timeout=PATIENCE)


def head(first: str, *lines: str, host: str | None = "localhost") -> bytes:
    """Write the head of a request; `host` is left out when it is none."""
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
    """Send bytes over a connection of their own and read the answer."""
    with dial(service) as connection:
        for part in parts:
            connection.sendall(part)
        return answer(connection, method)


def ask(
    service: Service, method: str, path: str, headers: Mapping[str, str], body: str | None = None
) -> httpx.Response:
    """Send a request in one piece over a connection of its own.

    A client that sends the body after the head may find the connection closed by a refusal that came in between.
    """
    lines = [f"{name}: {value}" for name, value in headers.items()]
    named = None if "host" in headers else "localhost"
    data = b"" if body is None else body.encode()
    length = [] if body is None else [f"Content-Length: {len(data)}"]
    return send(service, head(f"{method} {path}", *lines, *length, host=named) + data, method=method)


def pour(connection: socket.socket, piece: bytes, most: int) -> int:
    """Send the same piece again and again until an answer comes or enough is sent, and return how much was."""
    sent = 0
    while sent < most:
        readable, writable, _ = select.select([connection], [connection], [], PATIENCE)
        assert readable or writable, "the service neither reads nor answers"
        if readable:
            break
        try:
            sent += connection.send(piece)
        except ENDED:
            break
    return sent


def is_closed(connection: socket.socket) -> bool:
    """Wait until the other side says something, and return whether it was only its farewell."""
    try:
        return connection.recv(1) == b""
    except ENDED:
        return True
