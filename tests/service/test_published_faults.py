"""Eight requests that the published service answers wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.commands import run_cli
from cli.configs import small_config
from support.example import Example
from support.service import Service, run_service

from service.routes import assert_error
from service.wire import answer, ask, connect, flood, head, send


@pytest.fixture(scope="module")
def place(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the service, with a configuration in it."""
    made = tmp_path_factory.mktemp("probes")
    small_config(made, example)
    return made


@pytest.fixture(scope="module")
def service(place: Path) -> Iterator[Service]:
    """Yield the service."""
    with run_service(place) as running:
        yield running


def test_an_unknown_route_is_not_reported_as_an_unknown_run(service: Service) -> None:
    status = service.get("/status")
    assert status["run_requests"] == []
    assert_error(ask(service, "GET", "/statuses", {}), 404, "route_not_found")
    assert_error(ask(service, "GET", "/runs/missing", {}), 404, "run_not_found")


def test_a_run_is_submitted_by_the_path_of_its_configuration(service: Service) -> None:
    reply = service.ask("POST", "/runs", {"config_path": "gepa.toml"})
    assert reply.status_code == 201, reply.text
    assert reply.json()["run_id"] == "router"
    assert service.wait("router")["status"] == "completed"
    assert [request["run_id"] for request in service.get("/status")["run_requests"]] == ["router"]


def test_a_hostile_host_is_not_answered(service: Service) -> None:
    assert_error(send(service, head("GET /health", host="evil.example")), 403, "host_not_allowed")


def test_plain_text_of_another_site_is_not_parsed(service: Service) -> None:
    # The parser would reject invalid JSON with another code.
    foreign = {"origin": "https://evil.example", "content-type": "text/plain"}
    assert_error(ask(service, "POST", "/runs", foreign, "{"), 403, "origin_not_allowed")
    assert_error(ask(service, "POST", "/runs", {"content-type": "text/plain"}, "{"), 415, "content_type_not_json")


def test_fifty_megabytes_are_refused_before_they_are_read(service: Service) -> None:
    size = 50_000_000
    with connect(service) as connection:
        connection.sendall(head("POST /runs", "Content-Type: application/json", f"Content-Length: {size}"))
        sent = flood(connection, b" " * 65536, size)
        assert_error(answer(connection, "POST"), 413, "body_too_large")
    assert sent < size / 2


def test_fifty_stalled_connections_do_not_delay_others(service: Service) -> None:
    stalled = [connect(service) for _ in range(50)]
    try:
        for connection in stalled:
            connection.sendall(b"POST /runs HTTP/1.1\r\nHost: ")
        assert send(service, head("GET /health")).json()["status"] == "ok"
    finally:
        for connection in stalled:
            connection.close()


def test_a_second_service_on_the_same_database_does_not_start(service: Service, place: Path) -> None:
    ended = run_cli("gepa", "service", "--db", "service.sqlite", "--bind", "127.0.0.1:0", cwd=place)
    assert ended.code == 1
    assert ended.stdout == ""
    assert f"service_db_in_use: service.sqlite is in use by another service: pid {service.process.pid}" in ended.stderr
    assert service.get("/ready")["status"] == "ready"


def test_an_error_has_details_and_a_hint(service: Service) -> None:
    body = {"config": {"gepa": {"minibatch_sise": 3}}, "allow_unverified": True}
    refused = assert_error(service.ask("POST", "/runs", body), 422, "invalid_config")
    found = {each["field"]: each for each in refused["field_errors"]}  # type: ignore[attr-defined]
    assert "minibatch_size" in found["gepa.minibatch_sise"]["hint"]
    assert {"container.url", "candidate.target_modules"} <= set(found)
    # Where there is more information, the error has it: the state of the run, a hint, the system's message.
    twice = {"config_path": "gepa.toml", "overrides": ["run.run_id=twice"], "auto_start": False}
    assert service.ask("POST", "/runs", twice).status_code == 201
    assert assert_error(service.ask("POST", "/runs", twice), 409, "run_id_in_use")["state"] == "queued"
    gone = assert_error(ask(service, "GET", "/runs/missing", {}), 404, "run_not_found")
    assert "GET /runs" in str(gone["hint"])
    assert "missing" in str(gone["message"])
