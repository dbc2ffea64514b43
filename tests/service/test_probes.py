"""Eight questions that an earlier service of this kind answers wrongly, as a stranger would ask them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.commands import run_cli
from cli.places import small_config
from support.example import Example
from support.service import Service, serving

from service.routes import assert_refused
from service.wire import answer, ask, dial, head, pour, send


@pytest.fixture(scope="module")
def place(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the service, with a configuration in it."""
    made = tmp_path_factory.mktemp("probes")
    small_config(made, example)
    return made


@pytest.fixture(scope="module")
def service(place: Path) -> Iterator[Service]:
    """Yield the service."""
    with serving(place) as running:
        yield running


def test_status_shows_the_queue_and_an_unknown_route_is_no_unknown_run(service: Service) -> None:
    status = service.get("/status")
    assert status["run_requests"] == []
    assert_refused(ask(service, "GET", "/statuses", {}), 404, "route_not_found")
    assert_refused(ask(service, "GET", "/runs/nobody", {}), 404, "run_not_found")


def test_a_run_is_submitted_by_the_path_of_its_configuration(service: Service) -> None:
    reply = service.ask("POST", "/runs", {"config_path": "gepa.toml"})
    assert reply.status_code == 201, reply.text
    assert reply.json()["run_id"] == "router"
    assert service.wait("router")["status"] == "completed"
    assert [request["run_id"] for request in service.get("/status")["run_requests"]] == ["router"]


def test_a_hostile_host_is_not_answered(service: Service) -> None:
    assert_refused(send(service, head("GET /health", host="evil.example")), 403, "host_not_allowed")


def test_plain_text_from_another_site_does_not_reach_the_parser(service: Service) -> None:
    # What is no JSON would be told apart by another code, if anybody looked at it.
    foreign = {"origin": "https://evil.example", "content-type": "text/plain"}
    assert_refused(ask(service, "POST", "/runs", foreign, "{"), 403, "origin_not_allowed")
    assert_refused(ask(service, "POST", "/runs", {"content-type": "text/plain"}, "{"), 415, "content_type_not_json")


def test_fifty_megabytes_are_refused_before_they_are_read(service: Service) -> None:
    size = 50_000_000
    with dial(service) as connection:
        connection.sendall(head("POST /runs", "Content-Type: application/json", f"Content-Length: {size}"))
        sent = pour(connection, b" " * 65536, size)
        assert_refused(answer(connection, "POST"), 413, "body_too_large")
    assert sent < size / 2


def test_fifty_stalled_connections_keep_nobody_waiting(service: Service) -> None:
    stalled = [dial(service) for _ in range(50)]
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
    assert f"service_db_in_use: service.sqlite is served by another process: pid {service.process.pid}" in ended.stderr
    assert service.get("/ready")["status"] == "ready"


def test_a_refusal_says_more_than_that_it_is_one(service: Service) -> None:
    body = {"config": {"gepa": {"minibatch_sise": 3}}, "allow_unverified": True}
    refused = assert_refused(service.ask("POST", "/runs", body), 422, "config_invalid")
    found = {each["field"]: each for each in refused["field_errors"]}  # type: ignore[attr-defined]
    assert "minibatch_size" in found["gepa.minibatch_sise"]["hint"]
    assert {"container.url", "candidate.target_modules"} <= set(found)
    # Where there is more to say, it is said: the state of the run, what to do, what the machine said.
    twice = {"config_path": "gepa.toml", "overrides": ["run.run_id=twice"], "auto_start": False}
    assert service.ask("POST", "/runs", twice).status_code == 201
    assert assert_refused(service.ask("POST", "/runs", twice), 409, "run_id_in_use")["state"] == "queued"
    gone = assert_refused(ask(service, "GET", "/runs/nobody", {}), 404, "run_not_found")
    assert "GET /runs" in str(gone["hint"])
    assert "nobody" in str(gone["message"])
