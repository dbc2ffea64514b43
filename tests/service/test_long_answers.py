"""Long-lived answers: event streams, long polls, synchronous workers, and runs that fail."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cli.configs import small_config
from support.example import Example
from support.http_server import free_port
from support.service import Service, run_service

from service.routes import ROUTES, assert_error

STREAM = {"accept": "text/event-stream"}


@pytest.fixture(scope="module")
def service(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service with three runs: one completed, one failed and one queued."""
    place = tmp_path_factory.mktemp("answers")
    with run_service(place) as running:
        running.wait(running.run_id(small_config(place, example)), "completed")
        dead = {"run__run_id": "dead", "container__url": f"http://127.0.0.1:{free_port()}"}
        config = small_config(place, example, **dead, container__connect_retries=0, cache__namespace="dead")
        running.wait(running.run_id(config, allow_unverified=True), "failed")
        config = small_config(place, example, run__run_id="waiting", cache__namespace="waiting")
        running.run_id(config, auto_start=False)
        yield running


def test_the_stream_of_a_finished_run_ends(service: Service) -> None:
    reply = service.http.get("/runs/router/events", headers=STREAM)
    assert reply.headers["content-type"] == "text/event-stream"
    *events, end, rest = reply.text.split("\n\n")
    assert (end, rest) == ('event: end\ndata: {"status":"completed"}', "")
    pairs = [event.split("\n") for event in events]
    sequence_numbers = [int(first.removeprefix("id: ")) for first, _ in pairs]
    assert sequence_numbers == list(range(len(events)))
    lines = [json.loads(line.removeprefix("data: ")) for _, line in pairs]
    assert lines == service.get("/runs/router/events", limit=1000)["items"]
    # A client that has every event is told not to reconnect.
    last = {**STREAM, "last-event-id": str(sequence_numbers[-1])}
    assert service.http.get("/runs/router/events", headers=last).status_code == 204
    middle = service.http.get("/runs/router/events", headers={**STREAM, "last-event-id": "9"})
    assert middle.text.startswith("id: 10\n")
    for wrong in ("x", "-2", "", "1e3", "9" * 30):
        reply = service.http.get("/runs/router/events", headers={**STREAM, "last-event-id": wrong})
        assert reply.status_code == 422, wrong


def test_the_stream_of_a_waiting_run_stays_open(service: Service) -> None:
    with service.http.stream("GET", "/runs/waiting/events", headers=STREAM) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "text/event-stream"
        assert service.get("/health")["status"] == "ok"


def test_long_polls_end(service: Service) -> None:
    newest = service.get("/runs/router/best")["sequence"]
    # A finished run answers at once; an unfinished one after the requested wait.
    assert service.ask("GET", f"/runs/router/best?wait_newer_than={newest}&timeout_seconds=60").status_code == 304
    assert service.ask("GET", "/runs/waiting/best?wait_newer_than=-1&timeout_seconds=0.1").status_code == 304
    assert service.ask("GET", f"/runs/router/best?wait_newer_than={newest - 1}").status_code == 200
    tag = service.ask("GET", "/runs/router/best").headers["etag"]
    assert service.ask("GET", "/runs/router/best", headers={"if-none-match": tag}).status_code == 304


def test_a_synchronous_worker_call_returns_the_result(service: Service) -> None:
    done = service.ask("POST", "/worker/run-next", {"worker_id": "by hand", "lease_seconds": 60})
    assert done.status_code == 200, done.text
    document = done.json()
    assert document["request"]["run_id"] == "waiting"
    assert document["request"]["status"] == "completed"
    assert document["result"] == document["request"]["result"]
    none = service.ask("POST", "/worker/run-next", {}).json()
    assert none == {"request": None, "result": None, "message": "no queued run requests"}


def test_a_failed_run_is_a_successful_http_request(service: Service) -> None:
    for route in ROUTES:
        if not route.mutates and route.parameters in ((), ("run_id",)):
            for run_id in ("router", "dead"):
                reply = service.http.get(route.path(run_id=run_id))
                if reply.is_success and "json" in reply.headers["content-type"]:
                    # The cause of a failed run is in its run request; the HTTP request itself succeeds.
                    assert reply.json().get("error") is None, route
    assert service.request("dead")["error"]["error_code"] == "synth_optimizer_container_error"


@pytest.mark.parametrize(
    ("path", "body", "field", "told"),
    [
        ("/runs", {"config_path": "gepa.toml", "priority": "5"}, "priority", 'invalid type: string "5"'),
        ("/runs", {"config": 3}, "config", "neither TOML text nor an object"),
        ("/runs", {"config_path": "gepa.toml", "overrides": ["a", 2]}, "overrides[1]", "invalid type: integer"),
        ("/runs/router/pause", {"timeout_seconds": -1}, "timeout_seconds", "-1 is not between 1 and 14400"),
        ("/runs/router/cancel", {"reason": 7}, "reason", "invalid type: integer"),
    ],
)
def test_an_invalid_body_is_refused_with_its_field(
    path: str, body: dict[str, object], field: str, told: str, service: Service
) -> None:
    error = assert_error(service.ask("POST", path, body), 422, "invalid_request")
    assert told in str(error["message"])
    assert field in str(error["message"])
    problems = error["field_errors"]
    assert isinstance(problems, list)
    assert [found["field"] for found in problems] == [field]
    assert str(error["detail"]).startswith(f"{field}: ")
