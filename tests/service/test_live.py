"""Active runs can be read, and everything read then is still true at the end."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from support.example import Example
from support.gate import Gate
from support.polling import wait_until
from support.service import Service, run_service

from service.short_runs import LONG, TINY, config_file, has_event, paged, sections


def test_every_route_can_be_read_during_a_run(service: Service, slow: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, slow))
    seen: list[dict[str, Any]] = []
    scores: list[dict[str, Any]] = []
    since = -1
    while True:
        detail = service.get("/runs/router")
        page = service.get("/runs/router/scores", since=since)
        scores += page["items"]
        since = page["next_since"]
        best = service.http.get("/runs/router/best")
        seen.append(
            {
                "detail": detail,
                "candidates": service.get("/runs/router/candidates", limit=200)["items"],
                "rollouts": service.get("/runs/router/rollouts", limit=200)["items"],
                "frontier": service.get("/runs/router/frontier"),
                "best": best.json() if best.status_code == 200 else None,
                "series": service.get("/runs/router/scores/series")["series"],
                "artifacts": service.get("/runs/router/artifacts")["items"],
            }
        )
        if detail["request"]["is_terminal"]:
            break
    last = seen[-1]
    assert last["detail"]["request"]["status"] == "completed"
    # Rows of every stage were seen.
    assert {look["detail"]["request"]["status"] for look in seen} >= {"running", "completed"}
    assert len({len(look["candidates"]) for look in seen}) > 3
    statuses = {rollout["status"] for look in seen for rollout in look["rollouts"]}
    assert statuses >= {"running", "finished"}
    # Scores that were polled equal the final ones, except for the artifact that is written at the end.
    final = service.get("/runs/router/scores")["items"]
    nameless = [{**score, "artifact_ref": None} for score in scores]
    assert nameless == [{**score, "artifact_ref": None} for score in final]
    names = [entry["candidate_id"] for entry in last["candidates"]]
    sequence_numbers = [entry["call_id"] for entry in last["rollouts"]]
    final_rollouts = {entry["call_id"]: entry for entry in last["rollouts"]}
    for before, after in pairwise(seen):
        assert [entry["candidate_id"] for entry in before["candidates"]] == names[: len(before["candidates"])]
        assert [entry["call_id"] for entry in before["rollouts"]] == sequence_numbers[: len(before["rollouts"])]
        for name in ("sent_calls", "total_tokens", "rollout_calls"):
            used = [(look["detail"]["usage"] or {}).get(name, 0) for look in (before, after)]
            assert used == sorted(used)
        sequences = [-1 if look["best"] is None else look["best"]["sequence"] for look in (before, after)]
        assert sequences == sorted(sequences)
        settled = [entry for entry in before["rollouts"] if entry["settled_sequence"] is not None]
        assert settled == [final_rollouts[entry["call_id"]] for entry in settled]
    # The effective model is known after its first answer.
    proposers = [look["detail"]["models"]["proposer"]["effective"] for look in seen]
    assert proposers[0] is None
    assert proposers[-1] == "offline-reflector"
    assert last["frontier"]["size"] == 7


def test_an_active_run_shows_its_worker(service: Service, slow: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, slow, **LONG))
    wait_until("a rollout", has_event(service, "router", "rollout.finished"))
    detail = service.get("/runs/router")
    request = detail["request"]
    assert (request["status"], request["worker_id"], request["fencing_token"]) == ("running", "local-gepa", 1)
    assert request["lease_expires_at"] > request["leased_at"]
    assert request["waiting"] is None
    assert detail["run"]["state"] not in ("completed", "created")
    assert detail["run"]["holder"]
    workspace = service.get("/workspace")
    (lease,) = workspace["leases"]
    assert (lease["run_id"], lease["holder"], lease["lease_id"]) == ("router", "service", request["lease_id"])
    (worker,) = workspace["workers"]
    assert (worker["run_id"], worker["manual_step"]) == ("router", False)
    assert worker["seconds_since_progress"] < 30
    assert workspace["liveness"]["running_count"] == 1
    assert workspace["runs"] == {"total": 1, "by_status": {"running": 1}}
    service.ask("POST", "/runs/router/cancel", {})
    service.wait("router")


def test_a_run_waits_for_the_container_of_another_one(service: Service, slow: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, slow, **TINY))
    service.wait("router", "running")
    service.run_id(sections(tmp_path, slow, run__run_id="next", **TINY))
    first, second = service.request("router"), service.request("next")
    assert second["status"] == "queued"
    waiting = second["waiting"]
    assert waiting["reason"] == "container_busy"
    assert first["request_id"] in waiting["message"]
    assert slow.container_url in waiting["message"]
    assert waiting["since"] == second["submitted_at"]
    assert waiting["deadline_at"] is None
    assert service.wait("next")["status"] == "completed"
    # One at a time: the second run was claimed after the first had ended.
    assert service.request("next")["leased_at"] >= service.request("router")["finished_at"]


def test_a_run_waits_for_a_worker(tmp_path: Path, slow: Example, example: Example) -> None:
    with run_service(tmp_path, "--workers", "1") as service:
        service.run_id(config_file(tmp_path, slow, **TINY))
        service.wait("router", "running")
        service.run_id(sections(tmp_path, example, run__run_id="next", **TINY))
        assert service.request("next")["waiting"]["reason"] == "queue"
        assert service.wait("next")["status"] == "completed"


def test_runs_in_separate_lanes_are_executed_concurrently(
    service: Service, slow: Example, example: Example, container: Gate, tmp_path: Path
) -> None:
    service.run_id(config_file(tmp_path, example, container__url=container.url))
    service.run_id(sections(tmp_path, slow, run__run_id="next", **TINY))
    assert service.wait("next")["status"] == "completed"
    assert service.request("router")["status"] == "running"
    service.ask("POST", "/runs/router/cancel", {})
    assert service.wait("router")["status"] == "cancelled"


def test_pages_are_stable_while_new_runs_are_submitted(service: Service, example: Example, tmp_path: Path) -> None:
    for number in range(4):
        service.run_id(sections(tmp_path, example, run__run_id=f"r{number}"), auto_start=False)
    first = service.get("/runs", limit=2)
    service.run_id(sections(tmp_path, example, run__run_id="late"), auto_start=False)
    rest = service.get("/runs", limit=2, cursor=first["next_cursor"])
    assert [entry["run_id"] for entry in first["items"] + rest["items"]] == ["r3", "r2", "r1", "r0"]
    assert rest["next_cursor"] is None
    assert paged(service, "/runs", limit=2)[0][0]["run_id"] == "late"
