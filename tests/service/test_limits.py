"""Oversized input is refused early, and the service keeps serving other clients."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from support.service import Service, run_service

from service.routes import JSON, MUTATING, Route, assert_error
from service.wire import answer, ask, connect, flood, head, send

MEGABYTE = 1_000_000
DEEP = 10_000
MANY = {f"k{number}": 1 for number in range(100_000)}
BODIES = [route for route in MUTATING if route.method == "POST" and route.template != "/worker/recover"]
"""The routes that read a body."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service, which must be alive at the end and have logged no problem."""
    with run_service(tmp_path_factory.mktemp("limits")) as running:
        yield running
        assert running.get("/ready")["status"] == "ready"
        assert running.get("/runs")["items"] == []
        assert not re.search("WARN|ERROR|Traceback", running.stderr()), running.stderr()


def test_a_body_with_a_large_content_length_is_refused_before_it_is_sent(service: Service) -> None:
    with connect(service) as connection:
        connection.settimeout(3)
        connection.sendall(head("POST /runs", "Content-Type: application/json", "Content-Length: 50000000"))
        assert_error(answer(connection, "POST"), 413, "body_too_large")


def test_an_oversized_body_is_not_read_to_its_end(service: Service) -> None:
    with connect(service) as connection:
        connection.sendall(head("POST /runs", "Content-Type: application/json", "Content-Length: 50000000"))
        sent = flood(connection, b" " * 65536, 50 * MEGABYTE)
        assert_error(answer(connection, "POST"), 413, "body_too_large")
    # The rest is what fits into the socket buffers.
    assert sent < 25 * MEGABYTE


def test_an_endless_body_is_refused(service: Service) -> None:
    with connect(service) as connection:
        connection.sendall(head("POST /runs", "Content-Type: application/json", "Transfer-Encoding: chunked"))
        sent = flood(connection, b"10000\r\n" + b" " * 65536 + b"\r\n", 50 * MEGABYTE)
        assert_error(answer(connection, "POST"), 413, "body_too_large")
    assert sent < 25 * MEGABYTE


def test_a_body_at_the_limit_is_read(service: Service) -> None:
    most = 2 * 1024 * 1024
    assert_error(service.http.post("/runs", content=b" " * (most - 2) + b"{}", headers=JSON), 422, "invalid_request")
    assert_error(service.http.post("/runs", content=b" " * (most - 1) + b"{}", headers=JSON), 413, "body_too_large")


@pytest.mark.parametrize(
    "request_head",
    [
        head("GET /health", *["X-Many: y"] * 100),
        head("GET /health", *["X-Many: y"] * 5_000),
        head("GET /health", "X-Long: " + "y" * 200_000),
        head("GET /health", "y" * 200_000 + ": x"),
        head("GET /" + "y" * 200_000),
        head("GET /health?" + "y" * 200_000),
    ],
    ids=["101_headers", "5001_headers", "long_value", "long_name", "long_path", "long_query"],
)
def test_an_oversized_head_is_refused(request_head: bytes, service: Service) -> None:
    with connect(service) as connection:
        flood(connection, request_head, len(request_head))
        assert answer(connection).status_code in (400, 414, 431)


def test_an_endless_head_is_refused(service: Service) -> None:
    with connect(service) as connection:
        connection.sendall(head("GET /health").removesuffix(b"\r\n"))
        sent = flood(connection, b"X: y\r\n" * 1000, 50 * MEGABYTE)
        assert answer(connection).status_code in (400, 431)
    assert sent < 25 * MEGABYTE


def test_a_head_of_ordinary_size_is_read(service: Service) -> None:
    usual = head("GET /health", *["X-Some: y"] * 90, "X-Long: " + "y" * 8_000)
    assert send(service, usual).status_code == 200


@pytest.mark.parametrize(
    "nonsense",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /hea lth HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n",
        b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n{}",
        b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
        b"POST /runs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n{}",
    ],
    ids=["text", "tls", "version", "target", "space", "return", "two_lengths", "negative", "overflow", "encoding"],
)
def test_malformed_requests_are_refused(nonsense: bytes, service: Service) -> None:
    assert send(service, nonsense).status_code == 400


def test_a_broken_chunk_is_refused(service: Service) -> None:
    first = head("POST /runs", "Content-Type: application/json", "Transfer-Encoding: chunked")
    for chunk in (b"nonsense\r\n{}\r\n0\r\n\r\n", b"ffffffffffffffffff\r\n{}\r\n", b"2\r\n{}nonsense\r\n0\r\n\r\n"):
        assert send(service, first, chunk, method="POST").status_code in (400, 413, 422)


@pytest.mark.parametrize("route", BODIES, ids=str)
def test_a_deeply_nested_document_is_refused(route: Route, service: Service) -> None:
    for text in ("[" * DEEP + "]" * DEEP, '{"config":' * DEEP + "1" + "}" * DEEP, "[" * DEEP):
        assert_error(service.http.post(route.path(), content=text, headers=JSON), 400, "invalid_json")


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * DEEP + "]" * DEEP,
        "a = " + "{a = " * DEEP + "1" + "}" * DEEP,
        ".".join("a" * DEEP) + " = 1",
        "[" + ".".join("a" * DEEP) + "]",
        "[[" + "]]\n[[".join(["a"] * DEEP) + "]]",
    ],
    ids=["arrays", "tables", "dotted_key", "dotted_header", "many_tables"],
)
def test_a_deeply_nested_configuration_is_refused(text: str, service: Service) -> None:
    for body in ({"config": text}, {"config": {}, "overrides": [text]}):
        assert service.ask("POST", "/runs", {**body, "allow_unverified": True}).status_code == 422


def test_a_document_with_very_many_keys_is_refused(service: Service) -> None:
    for path in ("/runs", "/runs/preflight", "/workspace/prune", "/worker/tick"):
        assert_error(service.ask("POST", path, MANY), 422, "invalid_request")


def test_an_error_is_not_larger_than_its_request(service: Service) -> None:
    text = json.dumps({"config": MANY, "allow_unverified": True})
    reply = service.http.post("/runs", content=text, headers=JSON)
    assert reply.status_code == 422
    # The answer lists at most some hundred problems; listing all would amplify the request.
    assert len(reply.content) < len(text)


@pytest.mark.parametrize(
    "body",
    [
        b'{"config": "\xff\xfe"}',
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b'{"priority": NaN}',
        b'{"priority": Infinity}',
        b'{"priority": 1e400}',
        b'{"priority": 01}',
        b'{"config": "\\ud800"}',
        b"{'config': 1}",
        b"{} {}",
        b"{}\x00",
        b"\x1f\x8b\x08\x00",
    ],
    ids=repr,
)
def test_invalid_json_is_refused(body: bytes, service: Service) -> None:
    assert_error(service.http.post("/runs", content=body, headers=JSON), 400, "invalid_json")


def test_a_compressed_body_is_refused(service: Service) -> None:
    packed = ask(service, "POST", "/runs", {**JSON, "content-encoding": "gzip"}, "{")
    assert_error(packed, 400, "invalid_json")


@pytest.mark.parametrize("priority", ["1e3", "1.5", "true", '"1"', "1000001", "9223372036854775808", "null", "[]"])
def test_an_invalid_or_too_large_number_is_refused(priority: str, service: Service) -> None:
    reply = service.http.post("/runs", content=f'{{"priority": {priority}}}', headers=JSON)
    assert_error(reply, 422, "invalid_request")


def test_a_list_is_not_accepted_as_an_object(service: Service) -> None:
    # A `[]` must not be taken for an empty cancel request.
    lists: list[list[object]] = [[], [None], [[]]]
    for body in lists:
        answers = {str(route): service.ask("POST", route.path(), body).status_code for route in BODIES}
        assert set(answers.values()) == {422}, answers


def test_the_length_of_a_reason_is_limited(service: Service) -> None:
    for action in ("cancel", "stop", "pause", "resume"):
        reply = service.ask("POST", f"/runs/router/{action}", {"reason": "x" * 1001})
        assert_error(reply, 422, "invalid_request")


def test_the_length_of_a_name_is_counted_in_characters(service: Service) -> None:
    for count, status in ((200, 200), (201, 422)):
        assert service.ask("POST", "/worker/tick", {"worker_id": "ü" * count}).status_code == status
