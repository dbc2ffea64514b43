"""A service that is killed or stopped resumes its runs, and no call is lost or repeated needlessly."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.example import Example
from support.gate import Gate, gated_proposer
from support.polling import wait_until
from support.service import Service, run_service

from service.short_runs import LONG, TINY, config_file, events, feed, has_event, history, sections
from synth_optimizers import workspace_status


def sent_twice(rollouts: list[dict[str, Any]]) -> list[str]:
    """Return the rollouts that reached the container more than once."""
    return [name for name, count in Counter(each["rollout_id"] for each in rollouts).items() if count > 1]


def unknown_outcomes(service: Service) -> int:
    """Return how many calls had an unknown outcome when the run was resumed."""
    resumed = [event["fields"] for event in events(service, "router") if event["type"] == "run.resumed"]
    return sum(fields["unknown_outcomes"] for fields in resumed)


def assert_same_as_uninterrupted(service: Service, uninterrupted: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of the run, whose result must equal that of an uninterrupted one."""
    request = service.wait("router")
    assert request["status"] == "completed"
    assert request["best_candidate_id"] == uninterrupted["best"]
    assert feed(service, "router") == uninterrupted["feed"]
    return request


def test_a_run_resumes_after_its_service_was_killed(
    tmp_path: Path, slow: Example, uninterrupted: dict[str, Any]
) -> None:
    kills = 4
    before = len(slow.rollouts())
    moments: list[Callable[[Service], Callable[[], object]]] = [
        # During the first batch, after a proposer turn, during the evaluation of a candidate, and in the last
        # generation.
        lambda _: lambda: len(slow.rollouts()) >= before + 4,
        lambda service: has_event(service, "router", "proposer.completed"),
        lambda _: lambda: len(slow.rollouts()) >= before + 40,
        lambda service: has_event(service, "router", "generation.started", 3),
    ]
    for number, moment in enumerate(moments):
        with run_service(tmp_path) as service:
            if number == 0:
                service.run_id(config_file(tmp_path, slow))
            wait_until("the critical moment", moment(service))
            assert service.request("router")["status"] == "running"
            assert service.end(signal.SIGKILL) == -signal.SIGKILL
    with run_service(tmp_path) as service:
        request = assert_same_as_uninterrupted(service, uninterrupted)
        assert (request["attempts"], request["recoveries"]) == (kills + 1, kills)
        steps = service.get("/runs/router")["history"]
        recovered = [step for step in steps if step["trigger"] == "lease_expired"]
        assert [(step["from"], step["to"]) for step in recovered] == [("running", "queued")] * kills
        assert {step["detail"]["evidence"] for step in recovered} <= {"earlier_service", "holder_gone"}
        tokens = [step["fencing_token"] for step in steps if step["trigger"] == "claim"]
        assert tokens == sorted(set(tokens))
        assert len(tokens) == kills + 1
        # This container does not deduplicate: calls in flight at a kill are sent again, and reported as unknown
        # outcomes.
        sent = Counter(rollout["rollout_id"] for rollout in slow.rollouts()[before:])
        assert len(sent) == 92
        assert max(sent.values()) <= kills + 1
        assert 0 < sum(sent.values()) - len(sent) <= unknown_outcomes(service) <= 8 * kills + 1


def test_answered_calls_are_not_sent_again_after_a_kill(
    tmp_path: Path, example: Example, uninterrupted: dict[str, Any]
) -> None:
    before = len(example.rollouts())
    with gated_proposer(example) as held:
        for kills in range(3):
            with run_service(tmp_path) as service:
                if kills == 0:
                    config = sections(tmp_path, example)
                    config["proposer"]["base_url"] = held.url
                    service.run_id(config)
                # The initial candidate is evaluated, and no rollout is in flight.
                held.wait_for(kills + 1)
                service.end(signal.SIGKILL)
        held.open()
        with run_service(tmp_path) as service:
            request = assert_same_as_uninterrupted(service, uninterrupted)
            assert (request["attempts"], request["recoveries"]) == (4, 3)
            # Three turns were sent whose outcome is unknown.
            assert unknown_outcomes(service) == 3
    rollouts = example.rollouts()[before:]
    assert len(rollouts) == 92
    assert sent_twice(rollouts) == []


def test_a_run_resumes_soon_after_a_restart(tmp_path: Path, example: Example, container: Gate) -> None:
    with run_service(tmp_path) as service:
        service.run_id(config_file(tmp_path, example, container__url=container.url))
        container.wait_for(2)
        expires_at = service.request("router")["lease_expires_at"]
        service.end(signal.SIGKILL)
    with run_service(tmp_path) as service:
        wait_until("the recovery", lambda: service.request("router")["attempts"] == 2)
        # The service did not wait for the old lease to expire.
        [recovered] = [step for step in service.get("/runs/router")["history"] if step["trigger"] == "lease_expired"]
        assert recovered["detail"]["evidence"] in ("earlier_service", "holder_gone")
        assert recovered["at"] < expires_at
        service.ask("POST", "/runs/router/cancel", {})
        service.wait("router")


def test_a_stopped_service_releases_its_runs(tmp_path: Path, slow: Example, uninterrupted: dict[str, Any]) -> None:
    before = len(slow.rollouts())
    with run_service(tmp_path) as service:
        service.run_id(config_file(tmp_path, slow))
        wait_until("a generation", has_event(service, "router", "generation.started"))
        assert service.end(signal.SIGTERM) == 0
        assert "Traceback" not in service.stderr()
    (request,) = workspace_status(tmp_path / "service.sqlite")["run_requests"]
    assert (request["status"], request["lease_id"], request["recoveries"]) == ("queued", None, 0)
    # The database is checkpointed: no WAL file remains beside it.
    log = tmp_path / "service.sqlite-wal"
    assert not log.exists() or log.stat().st_size == 0
    with run_service(tmp_path) as service:
        request = assert_same_as_uninterrupted(service, uninterrupted)
        assert (request["attempts"], request["recoveries"]) == (2, 0)
        assert "release" in history(service, "router")
        assert "lease_expired" not in history(service, "router")
    assert sent_twice(slow.rollouts()[before:]) == []


def test_a_service_ends_within_its_grace_period_while_a_proposer_hangs(
    tmp_path: Path, example: Example, uninterrupted: dict[str, Any]
) -> None:
    with gated_proposer(example) as held:
        with run_service(tmp_path, "--shutdown-grace-seconds", "1") as service:
            config = sections(tmp_path, example)
            config["proposer"]["base_url"] = held.url
            service.run_id(config)
            held.wait_for(1)
            assert service.end(signal.SIGTERM) == 0
            assert held.answered == 0
        held.open()
        with run_service(tmp_path) as service:
            assert_same_as_uninterrupted(service, uninterrupted)


def test_a_second_signal_does_not_wait_for_rollouts(tmp_path: Path, example: Example, container: Gate) -> None:
    # The grace period is longer than the test waits.
    with run_service(tmp_path, "--shutdown-grace-seconds", "600") as service:
        service.run_id(config_file(tmp_path, example, container__url=container.url))
        container.wait_for(2)
        service.process.send_signal(signal.SIGTERM)
        wait_until("the first", lambda: "draining" in service.stderr())
        assert service.end(signal.SIGTERM) == 0
        assert container.answered == 1
    (request,) = workspace_status(tmp_path / "service.sqlite")["run_requests"]
    assert request["status"] == "queued"


def test_a_draining_service_reports_it_and_accepts_nothing(tmp_path: Path, example: Example, container: Gate) -> None:
    with run_service(tmp_path, "--shutdown-grace-seconds", "600") as service:
        service.run_id(config_file(tmp_path, example, container__url=container.url))
        container.wait_for(2)
        service.process.send_signal(signal.SIGTERM)
        wait_until("the drain", lambda: service.get("/health")["phase"] == "draining")
        for reply in (service.http.get("/ready"), service.submit(config_file(tmp_path, example, run__run_id="next"))):
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "draining")
            assert reply.headers["retry-after"]
        assert service.request("router")["status"] == "running"
        assert service.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(("action", "state"), [("cancel", "cancelled"), ("pause", "paused")])
def test_an_acknowledged_cancel_survives_a_kill_of_the_service(
    action: str, state: str, tmp_path: Path, example: Example, container: Gate
) -> None:
    with run_service(tmp_path) as service:
        service.run_id(config_file(tmp_path, example, container__url=container.url))
        container.wait_for(2)
        assert service.ask("POST", f"/runs/router/{action}", {"reason": "so"}).status_code == 202
        service.end(signal.SIGKILL)
    with run_service(tmp_path) as service:
        request = service.wait("router", state)
        assert request["attempts"] == 1
        assert service.get("/workspace")["workers"] == []
        service.ask("POST", "/runs/router/cancel", {})
        assert service.wait("router")["status"] == "cancelled"


def test_an_acknowledged_stop_survives_a_kill_of_the_service(tmp_path: Path, slow: Example) -> None:
    with run_service(tmp_path) as service:
        service.run_id(config_file(tmp_path, slow, **LONG))
        wait_until("a generation", has_event(service, "router", "generation.started"))
        assert service.ask("POST", "/runs/router/stop", {"reason": "so"}).status_code == 202
        service.end(signal.SIGKILL)
    with run_service(tmp_path) as service:
        request = service.wait("router")
        assert (request["status"], request["result"]["stopped_by"]["kind"]) == ("completed", "external")
        assert sum(event["type"] == "generation.started" for event in events(service, "router")) == 1


def test_a_pause_survives_a_restart_of_the_service(
    tmp_path: Path, slow: Example, uninterrupted: dict[str, Any]
) -> None:
    with run_service(tmp_path) as service:
        service.run_id(config_file(tmp_path, slow))
        wait_until("a generation", has_event(service, "router", "generation.started"))
        service.ask("POST", "/runs/router/pause", {})
        request = service.wait("router", "paused")
        assert service.end(signal.SIGTERM) == 0
    with run_service(tmp_path) as service:
        assert service.request("router") == request
        assert service.ask("POST", "/runs/router/resume", {}).status_code == 202
        assert_same_as_uninterrupted(service, uninterrupted)


def test_a_service_whose_lock_file_was_removed_ends(tmp_path: Path, example: Example) -> None:
    with run_service(tmp_path) as first:
        (tmp_path / "service.sqlite.lock").unlink()
        assert first.process.wait(20) == 1
        with run_service(tmp_path) as second:
            second.run_id(config_file(tmp_path, example, **TINY))
            request = second.wait("router")
            assert (request["status"], request["attempts"]) == ("completed", 1)
