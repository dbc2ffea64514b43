"""A run is submitted once, durably, in any of three shapes, and starts in its turn."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.example import Example
from support.http_server import free_port
from support.polling import wait_until
from support.service import Service, run_service

from service.short_runs import LONG, TINY, config_file, expect_error, feed, has_event, history, sections


def test_file_text_and_sections_give_the_same_configuration(service: Service, example: Example, tmp_path: Path) -> None:
    file = config_file(tmp_path, example)
    text = (tmp_path / file).read_text(encoding="utf-8")
    known = []
    for config in (file, text, sections(tmp_path, example)):
        assert service.run_id(config, auto_start=False) == "router"
        known.append(service.get("/runs/router"))
        # A cancelled run frees its run id.
        assert service.ask("POST", "/runs/router/cancel", {}).status_code == 202
    assert len({detail["request"]["config_digest"] for detail in known}) == 1
    assert known[0]["config"] == known[1]["config"] == known[2]["config"]
    assert [detail["request"]["config_path"] for detail in known] == ["gepa.toml", None, None]
    fields = [{value["field"] for value in detail["origins"]} for detail in known]
    assert fields[0] == fields[1] == fields[2]


def test_every_shape_of_a_configuration_gives_the_same_run(service: Service, example: Example, tmp_path: Path) -> None:
    feeds = []
    for name, as_text in (("file", False), ("text", True), ("object", False)):
        file = config_file(tmp_path, example, run__run_id=name)
        text = (tmp_path / file).read_text(encoding="utf-8")
        config = text if as_text else file if name == "file" else sections(tmp_path, example, run__run_id=name)
        assert service.run_id(config) == name
        assert service.wait(name)["status"] == "completed"
        feeds.append(feed(service, name))
    assert feeds[0] == feeds[1] == feeds[2]


def test_an_acknowledged_submission_survives_a_kill_of_the_service(tmp_path: Path, example: Example) -> None:
    with run_service(tmp_path) as service:
        reply = service.submit(config_file(tmp_path, example), key="k-1", priority=3, auto_start=False)
        service.end(signal.SIGKILL)
    assert reply.status_code == 201, reply.text
    known = reply.json()
    assert (known["run_id"], known["auto_started"], known["replayed"], known["warnings"]) == (
        *("router", False, False),
        [],
    )
    entry = known["request"]
    told = {"run_id": "router", "status": "queued", "is_terminal": False, "priority": 3, "auto_start": False}
    told |= {"manual_step": False, "config_path": "gepa.toml", "idempotency_key": "k-1", "attempts": 0}
    told |= {"container_url": example.container_url, "cache_mode": "off", "fencing_token": 0, "recoveries": 0}
    told |= {"run_dir": str(tmp_path / "runs" / "router"), "output_dir": str(tmp_path / "runs")}
    assert {name: entry[name] for name in told} == told
    assert entry["request_id"].startswith("runreq_")
    assert len(entry["config_digest"]) == 64
    assert entry["waiting"]["reason"] == "auto_start_off"
    nothing = ("leased_at", "lease_id", "worker_id", "started_at", "finished_at", "result", "error", "usage")
    assert [entry[name] for name in nothing] == [None] * len(nothing)
    with run_service(tmp_path) as service:
        assert service.request("router") == entry
        assert history(service, "router") == ["submit"]
        again = service.submit(config_file(tmp_path, example), key="k-1", priority=3, auto_start=False)
        assert (again.status_code, again.json()["replayed"]) == (200, True)


def test_an_idempotency_key_returns_the_same_run_or_a_conflict(
    service: Service, example: Example, tmp_path: Path
) -> None:
    config = sections(tmp_path, example, run__run_id=None, **TINY)
    first = service.submit(config, key="monday")
    assert first.status_code == 201, first.text
    run_id = first.json()["run_id"]
    assert service.wait(run_id)["status"] == "completed"
    again = service.submit(config, key="monday")
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    assert again.json()["request"] == service.request(run_id)
    error = expect_error(service.submit(config, key="monday", priority=1), 409, "idempotency_conflict")
    assert run_id in error["message"]
    other = service.submit(config, key="tuesday")
    assert other.status_code == 201
    assert other.json()["run_id"] != run_id


def test_concurrent_submissions_with_one_key_create_one_run(service: Service, example: Example, tmp_path: Path) -> None:
    config = sections(tmp_path, example, run__run_id=None)
    with ThreadPoolExecutor(30) as pool:
        replies = list(pool.map(lambda _: service.submit(config, key="once", auto_start=False), range(30)))
    assert sorted(reply.status_code for reply in replies) == [200] * 29 + [201]
    assert len({reply.json()["run_id"] for reply in replies}) == 1
    assert sum(not reply.json()["replayed"] for reply in replies) == 1
    assert len(service.get("/runs")["items"]) == 1


def test_concurrent_submissions_with_one_key_and_run_id_create_one_run(
    service: Service, example: Example, tmp_path: Path
) -> None:
    config = sections(tmp_path, example)
    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(lambda _: service.submit(config, key="once", auto_start=False), range(12)))
    # The second submission finds the run id taken by the first, which has the same key.
    assert sorted(reply.status_code for reply in replies) == [200] * 11 + [201]
    assert {reply.json()["run_id"] for reply in replies} == {"router"}


@pytest.mark.parametrize("key", ["", "two words", "x" * 201, "clé"])
def test_an_invalid_idempotency_key_is_refused(key: str, done: Service) -> None:
    reply = done.ask("POST", "/runs", {}, headers={"idempotency-key": key.encode()})
    expect_error(reply, 422, "invalid_parameter")


def test_a_run_id_is_taken_while_its_run_is_queued_or_active(service: Service, slow: Example, tmp_path: Path) -> None:
    file = config_file(tmp_path, slow, **LONG)
    service.run_id(file, auto_start=False)
    assert expect_error(service.submit(file), 409, "run_id_in_use")["state"] == "queued"
    assert service.ask("POST", "/runs/router/cancel", {}).status_code == 202
    service.run_id(file)
    wait_until("a rollout", has_event(service, "router", "rollout.requested"))
    error = expect_error(service.submit(file), 409, "run_id_in_use")
    assert error["state"] == "running"


def test_a_run_id_is_taken_by_a_completed_run(service: Service, example: Example, tmp_path: Path) -> None:
    file = config_file(tmp_path, example, **TINY)
    service.run_id(file)
    assert service.wait("router")["status"] == "completed"
    error = expect_error(service.submit(file), 409, "run_exists")
    assert error["state"] == "completed"
    assert service.ask("DELETE", "/runs/router").status_code == 204
    assert service.run_id(file) == "router"
    assert service.wait("router")["status"] == "completed"


def test_a_run_that_did_not_start_can_be_submitted_again(service: Service, example: Example, tmp_path: Path) -> None:
    file = config_file(tmp_path, example)
    config = sections(tmp_path, example)
    config["container"] |= {"url": f"http://127.0.0.1:{free_port()}", "connect_retries": 0}
    service.run_id(config, allow_unverified=True)
    assert service.wait("router")["status"] == "failed"
    service.run_id(file, auto_start=False)
    assert service.ask("POST", "/runs/router/cancel", {}).json()["status"] == "cancelled"
    service.run_id(file)
    assert service.wait("router")["status"] == "completed"
    # Each run request keeps its own history.
    assert [entry["status"] for entry in service.get("/runs")["items"]] == ["completed", "cancelled", "failed"]


def test_a_cancelled_run_can_be_resubmitted_with_a_warning_and_restarts_once_deleted(
    service: Service, slow: Example, tmp_path: Path
) -> None:
    file = config_file(tmp_path, slow, **TINY)
    service.run_id(file)
    wait_until("a rollout", has_event(service, "router", "rollout.requested"))
    assert service.ask("POST", "/runs/router/cancel", {}).status_code == 202
    assert service.wait("router")["status"] == "cancelled"
    again = service.submit(file)
    assert again.status_code == 201
    # A cancelled run is not searched again under the same run id: it returns its end again, and a warning says so
    # before.
    assert [warning["code"] for warning in again.json()["warnings"]] == ["run_already_ended"]
    assert service.wait("router")["status"] == "cancelled"
    assert service.ask("DELETE", "/runs/router").status_code == 204
    assert service.submit(file).json()["warnings"] == []
    assert service.wait("router")["status"] == "completed"


def test_a_run_without_auto_start_waits_for_a_worker_call(service: Service, example: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, example), auto_start=False)
    waiting = service.request("router")["waiting"]
    assert waiting["reason"] == "auto_start_off"
    assert "run-next" in waiting["message"]
    # Meanwhile a run with auto-start completes, which shows that the workers have polled the queue.
    service.run_id(config_file(tmp_path, example, run__run_id="other", **TINY))
    service.wait("other")
    assert service.request("router")["status"] == "queued"
    done = service.ask("POST", "/worker/run-next", {"worker_id": "by-hand", "lease_seconds": 60}).json()
    assert (done["request"]["run_id"], done["request"]["status"]) == ("router", "completed")
    assert done["result"]["best_candidate_id"] == done["request"]["best_candidate_id"]
    claim = next(step for step in service.get("/runs/router")["history"] if step["trigger"] == "claim")
    assert claim["worker_id"] == "by-hand"
    assert service.ask("POST", "/worker/run-next").json() == {
        "request": None,
        "result": None,
        "message": "no queued run requests",
    }


def test_run_next_claims_the_highest_priority_then_the_oldest(
    service: Service, example: Example, tmp_path: Path
) -> None:
    for name, priority in (("a", 0), ("b", 5), ("c", 5), ("d", -1), ("e", 0)):
        service.run_id(sections(tmp_path, example, run__run_id=name, **TINY), priority=priority, auto_start=False)
    order = [service.ask("POST", "/worker/run-next").json()["request"]["run_id"] for _ in range(5)]
    assert order == ["b", "c", "a", "e", "d"]


def test_workers_claim_by_priority_then_age(service: Service, slow: Example, example: Example, tmp_path: Path) -> None:
    # All runs need one cache namespace, which the first holds until all others are queued.
    shared = {"cache__mode": "readwrite", "cache__namespace": "shared"}
    service.run_id(sections(tmp_path, slow, run__run_id="first", **LONG, **shared))
    wait_until("a rollout", has_event(service, "first", "rollout.requested"))
    for name, priority in (("a", 0), ("b", 2), ("c", 2), ("d", 1)):
        service.run_id(sections(tmp_path, example, run__run_id=name, **TINY, **shared), priority=priority)
        waiting = service.request(name)["waiting"]
        assert (waiting["reason"], "run first" in waiting["message"]) == ("cache_busy", True)
    service.ask("POST", "/runs/first/cancel", {})
    for name in "abcd":
        assert service.wait(name)["status"] == "completed"
    leased = {name: service.request(name)["leased_at"] for name in ("first", *"abcd")}
    assert sorted(leased, key=lambda name: str(leased[name])) == ["first", "b", "c", "d", "a"]


def test_an_invalid_priority_is_refused(service: Service, example: Example, tmp_path: Path) -> None:
    expect_error(service.submit(config_file(tmp_path, example), priority=1_000_001), 422, "invalid_request")
    expect_error(service.submit(config_file(tmp_path, example), priority=1.5), 422, "invalid_request")
    assert service.get("/runs")["items"] == []


def test_overrides_replace_settings_and_are_the_origin(service: Service, example: Example, tmp_path: Path) -> None:
    overrides = ["gepa.max_generations=1", "run.run_id=short"]
    assert service.run_id(config_file(tmp_path, example), overrides=overrides) == "short"
    detail = service.get("/runs/short")
    assert detail["config"]["gepa"]["max_generations"] == 1
    origins = {value["field"]: value["origin"] for value in detail["origins"]}
    assert origins["gepa.max_generations"] == origins["run.run_id"]
    assert not origins["gepa.max_generations"].startswith(("file", "default"))
    assert service.wait("short")["result"]["generations"] == 1
    error = expect_error(service.submit(config_file(tmp_path, example), overrides=["gepa.no=1"]), 422, "invalid_config")
    assert error["field_errors"][0]["field"] == "gepa.no"
