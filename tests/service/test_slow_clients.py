"""Clients that take their time, or take up all there is of something, keep nobody else waiting."""

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
from support.service import Service, serving
from support.waiting import PATIENCE, wait_until

from service.routes import assert_refused
from service.wire import ENDED, answer, dial, head, is_closed

HALF = [
    b"",
    b"G",
    b"GET /health HTTP/1.1\r\n",
    head("GET /health").removesuffix(b"\r\n"),
    head("POST /runs", "Content-Type: application/json", "Content-Length: 100"),
    head("POST /runs", "Content-Type: application/json", "Transfer-Encoding: chunked") + b"5\r\n{",
]
"""Beginnings of requests."""


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service that waits no longer than a second for anything."""
    limits = ("--header-timeout-seconds", "1", "--body-timeout-seconds", "1", "--write-timeout-seconds", "1")
    with serving(tmp_path_factory.mktemp("hasty"), *limits) as running:
        yield running


@contextlib.contextmanager
def opened(service: Service, beginnings: list[bytes]) -> Iterator[list[socket.socket]]:
    """Open a connection for each beginning, send that much and wait."""
    with contextlib.ExitStack() as stack:
        connections = []
        for beginning in beginnings:
            connection = stack.enter_context(dial(service))
            connection.sendall(beginning)
            connections.append(connection)
        yield connections


def fresh(service: Service, path: str = "/health") -> httpx.Response:
    """Ask over a new connection, as somebody does who comes now."""
    with dial(service) as connection:
        connection.sendall(head(f"GET {path}"))
        return answer(connection)


def test_clients_that_stall_keep_nobody_waiting(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        stalled = [HALF[number % len(HALF)] for number in range(200)]
        with opened(service, [*stalled, *[b""] * 200]) as connections:
            assert len(connections) == 400
            for _ in range(20):
                assert fresh(service).json()["status"] == "ok"
            assert fresh(service, "/ready").status_code == 200
            assert fresh(service, "/runs").json()["items"] == []
        # Nor do those who go away in the middle.
        assert fresh(service).status_code == 200
        assert not re.search("WARN|ERROR|Traceback", service.said()), service.said()


def test_a_slow_body_is_refused(hasty: Service) -> None:
    for beginning in HALF[-2:]:
        with dial(hasty) as connection:
            connection.sendall(beginning)
            error = assert_refused(answer(connection, "POST"), 408, "body_too_slow")
            assert error["retryable"] is True


def trickle(connection: socket.socket, data: bytes) -> int:
    """Send byte by byte until the other side speaks or hangs up, and return how many bytes it took."""
    connection.setblocking(False)
    deadline = time.monotonic() + PATIENCE
    for count, byte in enumerate(data):
        assert time.monotonic() < deadline, "it would wait for ever"
        with contextlib.suppress(BlockingIOError):
            try:
                connection.recv(1, socket.MSG_PEEK)
            except ConnectionResetError:
                return count
            return count
        connection.send(bytes([byte]))
        # The next byte follows when the other side has said nothing for a while.
        select.select([connection], [], [], 0.05)
    return len(data)


def test_a_body_that_comes_byte_by_byte_is_refused_as_well(hasty: Service) -> None:
    data = b" " * 10_000
    with dial(hasty) as connection:
        connection.sendall(head("POST /runs", "Content-Type: application/json", f"Content-Length: {len(data)}"))
        assert trickle(connection, data) < len(data)
        connection.settimeout(PATIENCE)
        assert_refused(answer(connection, "POST"), 408, "body_too_slow")


@pytest.mark.parametrize("beginning", HALF[:4], ids=["nothing", "letter", "line", "headers"])
def test_a_slow_head_is_hung_up_on(beginning: bytes, hasty: Service) -> None:
    with dial(hasty) as connection:
        connection.sendall(beginning)
        assert is_closed(connection)


def test_a_head_that_comes_byte_by_byte_is_hung_up_on_as_well(hasty: Service) -> None:
    data = head("GET /health", "X-Slow: " + "y" * 10_000)
    with dial(hasty) as connection:
        assert trickle(connection, data) < len(data)


def test_a_connection_that_rests_between_two_requests_is_not_kept_for_ever(hasty: Service) -> None:
    with dial(hasty) as connection:
        connection.sendall(head("GET /health"))
        assert answer(connection).status_code == 200
        assert is_closed(connection)


def test_whoever_takes_nothing_of_an_answer_is_hung_up_on(hasty: Service) -> None:
    # So many questions, without a look at the answers, that neither side has room for more.
    questions = head("GET /openapi.json") * 1_000_000
    with dial(hasty) as connection, pytest.raises(ENDED):
        connection.sendall(questions)
    assert fresh(hasty).status_code == 200


def test_whoever_comes_when_all_places_are_taken_is_turned_away(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-connections", "8") as service, contextlib.ExitStack() as stack:
        held = []
        # One place belongs to the client of this test itself.
        for _ in range(7):
            connection = stack.enter_context(dial(service))
            connection.sendall(head("GET /health"))
            assert answer(connection).status_code == 200
            held.append(connection)
        for _ in range(20):
            with dial(service) as late:
                assert is_closed(late)
        # Those who are in are served as before.
        for connection in held:
            connection.sendall(head("GET /ready"))
            assert answer(connection).status_code == 200
        held[0].close()

        def is_back() -> bool:
            with contextlib.suppress(ConnectionError):
                return fresh(service).status_code == 200
            return False

        wait_until("a free place", is_back)
        assert service.process.poll() is None


def test_a_large_configuration_keeps_nobody_waiting(tmp_path: Path) -> None:
    text = "\n".join(f"k{number} = 1" for number in range(12_000))
    body = json.dumps({"config": text, "allow_unverified": True}).encode()
    large = head("POST /runs", "Content-Type: application/json", f"Content-Length: {len(body)}") + body
    with serving(tmp_path) as service, opened(service, [large] * 4) as busy:
        try:
            assert fresh(service).status_code == 200
            # It was answered while all of them were still being read.
            assert select.select(busy, [], [], 0)[0] == []
            for _ in range(20):
                assert fresh(service).status_code == 200
        finally:
            # What it still reads is of no interest.
            service.process.kill()
