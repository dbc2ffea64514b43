"""Slow clients, and clients that exhaust a resource, do not delay other clients."""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.polling import WAIT_TIMEOUT_SECONDS, wait_until
from support.service import Service, run_service

from service.routes import assert_error
from service.wire import CLOSED_ERRORS, answer, connect, head, is_closed

HALF = [
    b"",
    b"G",
    b"GET /health HTTP/1.1\r\n",
    head("GET /health").removesuffix(b"\r\n"),
    head("POST /runs", "Content-Type: application/json", "Content-Length: 100"),
    head("POST /runs", "Content-Type: application/json", "Transfer-Encoding: chunked") + b"5\r\n{",
]
"""Incomplete requests."""


@pytest.fixture(scope="module")
def impatient_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service whose timeouts are one second."""
    limits = ("--header-timeout-seconds", "1", "--body-timeout-seconds", "1", "--write-timeout-seconds", "1")
    with run_service(tmp_path_factory.mktemp("hasty"), *limits) as running:
        yield running


@contextlib.contextmanager
def open_connections(service: Service, beginnings: list[bytes]) -> Iterator[list[socket.socket]]:
    """Open a connection for each incomplete request and send it."""
    with contextlib.ExitStack() as stack:
        connections = []
        for beginning in beginnings:
            connection = stack.enter_context(connect(service))
            connection.sendall(beginning)
            connections.append(connection)
        yield connections


def ask_on_new_connection(service: Service, path: str = "/health") -> httpx.Response:
    """Send a request over a new connection."""
    with connect(service) as connection:
        connection.sendall(head(f"GET {path}"))
        return answer(connection)


def test_stalled_clients_do_not_delay_others(tmp_path: Path) -> None:
    with run_service(tmp_path) as service:
        stalled = [HALF[number % len(HALF)] for number in range(200)]
        with open_connections(service, [*stalled, *[b""] * 200]) as connections:
            assert len(connections) == 400
            for _ in range(20):
                assert ask_on_new_connection(service).json()["status"] == "ok"
            assert ask_on_new_connection(service, "/ready").status_code == 200
            assert ask_on_new_connection(service, "/runs").json()["items"] == []
        # Clients that disconnect early do not delay others either.
        assert ask_on_new_connection(service).status_code == 200
        assert not re.search("WARN|ERROR|Traceback", service.stderr()), service.stderr()


def test_a_slow_body_is_refused(impatient_service: Service) -> None:
    for beginning in HALF[-2:]:
        with connect(impatient_service) as connection:
            connection.sendall(beginning)
            error = assert_error(answer(connection, "POST"), 408, "body_timeout")
            assert error["retryable"] is True


def trickle(connection: socket.socket, data: bytes) -> int:
    """Send byte by byte until the other side answers or closes, and return how many bytes were sent."""
    connection.setblocking(False)
    deadline = time.monotonic() + WAIT_TIMEOUT_SECONDS
    for count, byte in enumerate(data):
        assert time.monotonic() < deadline, "it would wait for ever"
        with contextlib.suppress(BlockingIOError):
            try:
                connection.recv(1, socket.MSG_PEEK)
            except ConnectionResetError:
                return count
            return count
        connection.send(bytes([byte]))
        # Send the next byte if the other side has been silent for a while.
        select.select([connection], [], [], 0.05)
    return len(data)


def test_a_body_sent_byte_by_byte_is_refused(impatient_service: Service) -> None:
    data = b" " * 10_000
    with connect(impatient_service) as connection:
        connection.sendall(head("POST /runs", "Content-Type: application/json", f"Content-Length: {len(data)}"))
        assert trickle(connection, data) < len(data)
        connection.settimeout(WAIT_TIMEOUT_SECONDS)
        assert_error(answer(connection, "POST"), 408, "body_timeout")


@pytest.mark.parametrize("beginning", HALF[:4], ids=["nothing", "letter", "line", "headers"])
def test_a_connection_with_a_slow_head_is_closed(beginning: bytes, impatient_service: Service) -> None:
    with connect(impatient_service) as connection:
        connection.sendall(beginning)
        assert is_closed(connection)


def test_a_connection_with_a_head_sent_byte_by_byte_is_closed(impatient_service: Service) -> None:
    data = head("GET /health", "X-Slow: " + "y" * 10_000)
    with connect(impatient_service) as connection:
        assert trickle(connection, data) < len(data)


def test_an_idle_connection_is_closed(impatient_service: Service) -> None:
    with connect(impatient_service) as connection:
        connection.sendall(head("GET /health"))
        assert answer(connection).status_code == 200
        assert is_closed(connection)


def test_a_connection_whose_client_does_not_read_is_closed(impatient_service: Service) -> None:
    # So many requests, without reading the answers, that the buffers of both sides are full.
    questions = head("GET /openapi.json") * 1_000_000
    with connect(impatient_service) as connection, pytest.raises(CLOSED_ERRORS):
        connection.sendall(questions)
    assert ask_on_new_connection(impatient_service).status_code == 200


def test_connections_above_the_limit_are_refused(tmp_path: Path) -> None:
    with run_service(tmp_path, "--max-connections", "8") as service, contextlib.ExitStack() as stack:
        held = []
        # One connection belongs to the test's own client.
        for _ in range(7):
            connection = stack.enter_context(connect(service))
            connection.sendall(head("GET /health"))
            assert answer(connection).status_code == 200
            held.append(connection)
        for _ in range(20):
            with connect(service) as late:
                assert is_closed(late)
        # Established connections are served as before.
        for connection in held:
            connection.sendall(head("GET /ready"))
            assert answer(connection).status_code == 200
        held[0].close()

        def is_back() -> bool:
            with contextlib.suppress(ConnectionError):
                return ask_on_new_connection(service).status_code == 200
            return False

        wait_until("a free connection", is_back)
        assert service.process.poll() is None


def test_large_configurations_do_not_delay_others(tmp_path: Path) -> None:
    text = "\n".join(f"k{number} = 1" for number in range(12_000))
    body = json.dumps({"config": text, "allow_unverified": True}).encode()
    large = head("POST /runs", "Content-Type: application/json", f"Content-Length: {len(body)}") + body
    with run_service(tmp_path) as service, open_connections(service, [large] * 4) as busy:
        try:
            assert ask_on_new_connection(service).status_code == 200
            # It was answered while the large bodies were still being read.
            assert select.select(busy, [], [], 0)[0] == []
            for _ in range(20):
                assert ask_on_new_connection(service).status_code == 200
        finally:
            # The remaining answers are irrelevant.
            service.process.kill()
