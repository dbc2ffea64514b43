"""Runs in manual-step mode, and worker calls by hand."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from support.example import Example
from support.polling import wait_until
from support.service import Service, run_service

from service.short_runs import TINY, config_file, events, expect_error, feed, has_event, history
from synth_optimizers import workspace_claim_next_run_request, workspace_submit_run_request

LIMITS = ("container__startup", "container__rollout", "gepa__rollout_async", "proposer_")
SHORT = {f"{limit}_timeout_seconds": 1 for limit in LIMITS}
"""Settings under which a stepped run is idle after a second and the pause timeout of the service."""
MANY = 500
"""More steps than a run has."""


def step(service: Service, run_id: str) -> dict[str, Any]:
    """Execute one step, which must succeed."""
    reply = service.ask("POST", f"/runs/{run_id}/step", {})
    assert reply.status_code == 200, reply.text
    known: dict[str, Any] = reply.json()
    assert known["run_id"] == run_id
    return known


def test_a_stepped_run_has_the_same_result(service: Service, example: Example, tmp_path: Path) -> None:
    assert service.submit(config_file(tmp_path, example), manual_step=True).json()["auto_started"] is False
    assert service.request("router")["waiting"]["reason"] == "manual_step"
    told: list[dict[str, Any]] = []
    for count in range(MANY):
        before = len(example.rollouts())
        known = step(service, "router")
        told += known["events"]
        if known["terminal"]:
            break
        # Between two steps the run waits, is listed as waiting, and sends nothing.
        request = service.request("router")
        assert (request["status"], request["waiting"]["reason"]) == ("running", "manual_step")
        assert known["state"] not in ("completed", "failed", "cancelled")
        if count == 0:
            assert len(example.rollouts()) - before <= 12
            assert service.get("/runs")["items"][0]["waiting"]["reason"] == "manual_step"
    assert known["terminal"]
    assert 3 < count < MANY
    assert known["state"] == "completed"
    # Together, the steps return every event exactly once.
    assert told == events(service, "router")
    service.run_id(config_file(tmp_path, example, run__run_id="free"))
    free = service.wait("free")
    assert service.request("router")["best_candidate_id"] == free["best_candidate_id"]
    assert feed(service, "router") == feed(service, "free")
    error = expect_error(service.ask("POST", "/runs/router/step", {}), 409, "invalid_transition")
    assert error["state"] == "completed"


def test_a_continuous_run_cannot_be_stepped(service: Service, example: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, example), auto_start=False)
    error = expect_error(service.ask("POST", "/runs/router/step", {}), 409, "manual_step_required")
    assert error["state"] == "queued"
    assert service.request("router")["attempts"] == 0


def test_a_stepped_run_is_paused_resumed_and_cancelled(service: Service, example: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, example), manual_step=True)
    step(service, "router")
    assert service.ask("POST", "/runs/router/pause", {}).status_code == 202
    service.wait("router", "paused")
    error = expect_error(service.ask("POST", "/runs/router/step", {}), 409, "invalid_transition")
    assert error["state"] == "paused"
    assert service.ask("POST", "/runs/router/resume", {}).status_code == 202
    assert not step(service, "router")["terminal"]
    assert service.ask("POST", "/runs/router/cancel", {}).status_code == 202
    assert service.wait("router")["status"] == "cancelled"


def test_a_stepped_run_survives_a_kill_of_the_service(tmp_path: Path, example: Example) -> None:
    with run_service(tmp_path) as service:
        service.run_id(config_file(tmp_path, example), manual_step=True)
        for _ in range(3):
            step(service, "router")
        service.end(signal.SIGKILL)
    with run_service(tmp_path) as service:
        request = service.request("router")
        assert (request["status"], request["waiting"]["reason"]) == ("queued", "manual_step")
        while not step(service, "router")["terminal"]:
            pass
        service.run_id(config_file(tmp_path, example, run__run_id="free"))
        service.wait("free")
        assert feed(service, "router") == feed(service, "free")


def test_a_stepped_run_without_steps_is_paused(tmp_path: Path, example: Example) -> None:
    with run_service(tmp_path, "--pause-timeout-seconds", "1") as service:
        service.run_id(config_file(tmp_path, example, **SHORT), manual_step=True)
        step(service, "router")
        assert service.wait("router")["status"] == "cancelled"
        assert history(service, "router")[-3:] == ["request_pause", "pause", "pause_expired"]


def test_a_stop_of_a_stepped_run_without_steps_is_kept(tmp_path: Path, example: Example) -> None:
    with run_service(tmp_path, "--pause-timeout-seconds", "1") as service:
        service.run_id(config_file(tmp_path, example, **SHORT), manual_step=True)
        step(service, "router")
        assert service.ask("POST", "/runs/router/stop", {}).status_code == 202
        service.wait("router", "queued")
        known = step(service, "router")
        while not known["terminal"]:
            known = step(service, "router")
        assert known["state"] == "completed"


def test_only_a_step_starts_a_manual_step_run(service: Service, example: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, example, **TINY), manual_step=True)
    for path in ("/worker/run-next", "/worker/tick"):
        reply = service.ask("POST", path, {})
        assert (reply.status_code, reply.json()["request"]) == (200, None), reply.text
    request = service.request("router")
    assert (request["status"], request["attempts"], request["waiting"]["reason"]) == ("queued", 0, "manual_step")


def test_ticks_process_the_queue_one_unit_at_a_time(service: Service, example: Example, tmp_path: Path) -> None:
    def tick() -> dict[str, Any]:
        reply = service.ask("POST", "/worker/tick", {"worker_id": "ticker"})
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    nothing = tick()
    assert (nothing["request"], nothing["result"], nothing["terminal"]) == (None, None, False)
    assert nothing["action"] == {"action": "noop"}
    service.run_id(config_file(tmp_path, example, **TINY), auto_start=False)
    claimed = tick()
    assert claimed["action"] == {"action": "claim_run_request"}
    assert claimed["request"]["worker_id"] == "ticker"
    actions = []
    while not (known := tick())["terminal"]:
        actions.append(known["action"]["action"])
        assert len(actions) < MANY
        assert known["request"]["run_id"] == "router"
    assert set(actions) == {"step_run"}
    assert known["action"] == {"action": "terminalize_run"}
    assert known["result"]["state"] == known["request"]["status"] == "completed"
    assert tick()["action"] == {"action": "noop"}


def test_recover_returns_the_run_request_of_a_lost_worker(tmp_path: Path, example: Example) -> None:
    db = tmp_path / "service.sqlite"
    workspace_submit_run_request(db, tmp_path / config_file(tmp_path, example, **TINY))
    claim = workspace_claim_next_run_request(db, "lease-lost", "lost", 0.05)
    assert claim is not None
    with run_service(tmp_path) as service:
        # The worker is gone; either the service has noticed it, or the call makes it look.
        taken = service.ask("POST", "/worker/recover", {})
        assert taken.status_code == 200, taken.text
        assert {entry["run_id"] for entry in taken.json()["recovered_run_requests"]} <= {"router"}
        request = service.wait("router")
        assert (request["status"], request["attempts"], request["recoveries"]) == ("completed", 2, 1)
        assert "lease_expired" in history(service, "router")
        assert service.ask("POST", "/worker/recover", {}).json() == {"recovered_run_requests": []}


def test_recovery_does_not_affect_held_leases(service: Service, slow: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, slow, **TINY))
    wait_until("a rollout", has_event(service, "router", "rollout.requested"))
    assert service.ask("POST", "/worker/recover", {}).json() == {"recovered_run_requests": []}
    request = service.wait("router")
    assert (request["status"], request["attempts"], request["recoveries"]) == ("completed", 1, 0)


def test_worker_calls_validate_their_arguments(service: Service) -> None:
    for path in ("/worker/run-next", "/worker/tick"):
        for body in ({"worker_id": ""}, {"lease_seconds": 0.5}, {"lease_seconds": 100_000}, {"workerid": "x"}):
            expect_error(service.ask("POST", path, body), 422, "invalid_request")
