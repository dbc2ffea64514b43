"""Control requests: active runs are cancelled, paused, resumed and stopped promptly in every phase."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.example import Example
from support.gate import Gate
from support.polling import wait_until
from support.service import Service

from service.short_runs import LONG, TINY, config_file, events, expect_error, feed, has_event, history


def send_control(service: Service, action: str, **body: object) -> tuple[int, dict[str, Any]]:
    """Send a control request and return the HTTP status and the acknowledgement."""
    reply = service.ask("POST", f"/runs/router/{action}", body)
    return reply.status_code, reply.json()


def send_accepted(service: Service, action: str, **body: object) -> None:
    """Send a control request that must be accepted."""
    status, known = send_control(service, action, **body)
    assert status == 202, known
    assert (known["run_id"], known["action"], known["acknowledgement"]) == ("router", action, "accepted")
    assert known["message"]


def start_rollouts(service: Service, example: Example, place: Path, **changes: object) -> None:
    """Start a run and wait until a batch of its rollouts is in flight."""
    sent = len(example.rollouts())
    service.run_id(config_file(place, example, **changes))
    wait_until("a batch", lambda: len(example.rollouts()) >= sent + 4)


def start_held_rollouts(service: Service, example: Example, container: Gate, place: Path) -> None:
    """Start a run and wait until a batch is in flight that the container does not answer."""
    service.run_id(config_file(place, example, container__url=container.url))
    container.wait_for(4)


def start_turn(service: Service, example: Example, proposer: Gate, place: Path) -> None:
    """Start a run and wait until its proposer was called and does not answer."""
    service.run_id(config_file(place, example, proposer__base_url=proposer.url))
    proposer.wait_for(1)


def cancel_reason(request: dict[str, Any]) -> tuple[str, str, str]:
    """Return why a run request was cancelled; the keys are those of a failure."""
    error = request["error"]
    assert set(error) == {"error_code", "reason_code", "message", "detail", "hint", "retryable", "findings"}
    return error["error_code"], error["reason_code"], error["message"]


def test_a_batch_is_cancelled_promptly(service: Service, example: Example, container: Gate, tmp_path: Path) -> None:
    start_held_rollouts(service, example, container, tmp_path)
    send_accepted(service, "cancel", reason="enough")
    request = service.wait("router")
    # The first rollout is sent alone. The run does not wait for the batch, which the container still holds.
    assert container.answered == 1
    assert service.get("/runs/router/rollouts", status="finished")["items"][1:] == []
    assert request["status"] == "cancelled"
    assert cancel_reason(request) == ("synth_optimizer_cancelled", "cancelled", "enough")
    assert request["lease_id"] is None
    assert history(service, "router") == ["submit", "claim", "start", "request_cancel", "cancel"]
    assert events(service, "router")[-1]["type"] == "gepa.run.cancelled"
    status, known = send_control(service, "cancel")
    assert (status, known["acknowledgement"], known["status"]) == (200, "noop", "cancelled")
    # A rollout that was never sent is neither a call nor a failure.
    figures = dict(line.rsplit(" ", 1) for line in service.http.get("/metrics").text.splitlines() if line[0] != "#")
    withdrawn = [each for each in service.get("/runs/router/rollouts", limit=200)["items"] if not each["rollout_id"]]
    failed = service.get("/runs/router")["run"]["rollouts_failed"]
    assert withdrawn
    assert int(figures['synth_optimizers_rollouts_total{kind="failed"}']) == failed


def test_cancel_does_not_wait_for_a_slow_batch(
    service: Service, example: Example, container: Gate, tmp_path: Path
) -> None:
    start_held_rollouts(service, example, container, tmp_path)
    send_accepted(service, "pause")
    service.wait("router", "paused")
    sent = container.arrived
    send_accepted(service, "resume")
    container.wait_for(sent + 1)
    send_accepted(service, "stop")
    wait_until("the stop", has_event(service, "router", "gepa.stop"))
    send_accepted(service, "cancel")
    assert service.wait("router")["status"] == "cancelled"
    # All of this happened while the container held the batch.
    assert container.answered == 1


def test_nothing_is_sent_after_a_cancel(service: Service, slow: Example, tmp_path: Path) -> None:
    start_rollouts(service, slow, tmp_path)
    send_accepted(service, "cancel")
    assert service.wait("router")["status"] == "cancelled"
    sent = len(slow.rollouts())
    # Another run keeps the container busy; no more rollouts of the cancelled run arrive.
    service.run_id(config_file(tmp_path, slow, run__run_id="next", **TINY))
    assert service.wait("next")["status"] == "completed"
    of_next = {rollout["rollout_id"] for rollout in service.get("/runs/next/rollouts", limit=200)["items"]}
    assert {rollout["rollout_id"] for rollout in slow.rollouts()[sent:]} == of_next


def test_a_proposer_turn_is_cancelled_promptly(
    service: Service, example: Example, proposer: Gate, tmp_path: Path
) -> None:
    start_turn(service, example, proposer, tmp_path)
    sent = len(example.rollouts())
    send_accepted(service, "cancel")
    assert service.wait("router")["status"] == "cancelled"
    assert proposer.answered == 0
    proposer.open()
    assert service.get("/runs/router/best")["candidate_id"]
    assert len(example.rollouts()) == sent


def test_a_paused_batch_resumes_to_the_same_result(
    service: Service, slow: Example, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    start_rollouts(service, slow, tmp_path)
    for _ in range(3):
        send_accepted(service, "pause", reason="lunch")
        request = service.wait("router", "paused")
        assert request["lease_id"] is None
        assert request["waiting"]["reason"] == "paused"
        assert request["waiting"]["since"]
        # A pause lasts until it is resumed, unless a timeout is requested.
        assert request["waiting"]["deadline_at"] is None
        assert request["pause_expires_at"] is None
        status, known = send_control(service, "pause")
        assert (status, known["acknowledgement"], known["status"]) == (200, "noop", "paused")
        before = len(events(service, "router"))
        send_accepted(service, "resume")
        wait_until("the next event", lambda: len(events(service, "router")) > before + 2)  # noqa: B023 (used within the iteration)
    status, known = send_control(service, "resume")
    assert (status, known["acknowledgement"]) == (200, "noop")
    request = service.wait("router")
    assert (request["status"], request["attempts"], request["recoveries"]) == ("completed", 4, 0)
    assert request["best_candidate_id"] == uninterrupted["best"]
    assert feed(service, "router") == uninterrupted["feed"]


def test_a_paused_proposer_turn_is_sent_again(
    service: Service, example: Example, proposer: Gate, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    start_turn(service, example, proposer, tmp_path)
    send_accepted(service, "pause")
    service.wait("router", "paused")
    assert proposer.answered == 0
    proposer.open()
    send_accepted(service, "resume")
    request = service.wait("router")
    assert (request["status"], request["best_candidate_id"]) == ("completed", uninterrupted["best"])
    assert feed(service, "router") == uninterrupted["feed"]


def assert_run_cancelled(service: Service) -> None:
    """Check that the run itself is cancelled and keeps its usage, although no worker executed it."""
    wait_until("the end of the run", lambda: service.get("/runs/router")["run"]["is_terminal"])
    known = service.get("/runs/router")
    assert known["run"]["state"] == "cancelled"
    wait_until("its summary", lambda: service.request("router")["usage"])
    request = service.request("router")
    assert request["usage"]["sent_calls"] >= known["run"]["rollouts_finished"] > 0
    assert request["result_manifest_path"]
    last = events(service, "router")[-1]
    assert (last["type"], last["fields"]["reason"]) == ("gepa.run.cancelled", request["error"]["message"])
    assert {each["name"] for each in service.get("/runs/router/artifacts")["items"]} >= {"result_manifest.json"}


def test_cancelling_a_paused_run_ends_the_run_itself(service: Service, slow: Example, tmp_path: Path) -> None:
    start_rollouts(service, slow, tmp_path, **LONG)
    wait_until("a generation", has_event(service, "router", "generation.started"))
    send_accepted(service, "pause")
    service.wait("router", "paused")
    sent = len(slow.rollouts())
    send_accepted(service, "cancel", reason="enough")
    assert service.wait("router")["status"] == "cancelled"
    assert_run_cancelled(service)
    assert len(slow.rollouts()) == sent
    # Cancelling again gives the same result.
    service.run_id(config_file(tmp_path, slow, **LONG))
    assert service.wait("router")["status"] == "cancelled"
    assert len(slow.rollouts()) == sent


def test_an_expired_pause_cancels_the_run(service: Service, slow: Example, tmp_path: Path) -> None:
    start_rollouts(service, slow, tmp_path, **LONG)
    send_accepted(service, "pause", timeout_seconds=1)
    paused = service.wait("router", "paused")
    assert paused["pause_expires_at"]
    assert paused["waiting"]["deadline_at"] == paused["pause_expires_at"]
    request = service.wait("router", "cancelled")
    assert cancel_reason(request) == ("synth_optimizer_cancelled", "pause_timeout", "the pause timeout has passed")
    assert history(service, "router")[-1] == "pause_expired"
    for action in ("pause", "resume"):
        error = expect_error(service.ask("POST", f"/runs/router/{action}", {}), 409, "invalid_transition")
        assert error["state"] == "cancelled"
    assert_run_cancelled(service)


@pytest.mark.parametrize("seconds", [0, 14_401, 1.5, "soon"])
def test_an_invalid_pause_timeout_is_refused(seconds: object, done: Service) -> None:
    expect_error(done.ask("POST", "/runs/c0/pause", {"timeout_seconds": seconds}), 422, "invalid_request")


def test_a_batch_is_stopped_promptly_and_the_run_completes(service: Service, slow: Example, tmp_path: Path) -> None:
    start_rollouts(service, slow, tmp_path, **LONG)
    wait_until("a generation", has_event(service, "router", "generation.started"))
    send_accepted(service, "stop", reason="good enough")
    assert service.request("router")["waiting"]["reason"] == "stopping"
    wait_until("the stop", has_event(service, "router", "gepa.stop"))
    request = service.wait("router")
    assert request["status"] == "completed"
    assert request["result"]["stopped_by"]["kind"] == "external"
    assert request["result"]["best_heldout_score"]["n"] == 4
    heldout = [score for score in service.get("/runs/router/scores")["items"] if score["split"] == "heldout"]
    assert {score["n"] for score in heldout} == {4}
    kinds = [event["type"] for event in events(service, "router")]
    assert "generation.started" not in kinds[kinds.index("gepa.stop") :]
    status, known = send_control(service, "stop")
    assert (status, known["acknowledgement"], known["status"]) == (200, "noop", "completed")


def test_a_proposer_turn_is_stopped_promptly(
    service: Service, example: Example, proposer: Gate, tmp_path: Path
) -> None:
    start_turn(service, example, proposer, tmp_path)
    send_accepted(service, "stop")
    status, known = send_control(service, "stop")
    assert (status, known["acknowledgement"]) == (200, "noop")
    error = expect_error(service.ask("POST", "/runs/router/pause", {}), 409, "invalid_transition")
    assert error["state"] == "running"
    request = service.wait("router")
    assert proposer.answered == 0
    assert request["status"] == "completed"
    assert request["result"]["best_heldout_score"]["n"] == 4


def test_stopping_a_run_before_its_start_cancels_it(service: Service, example: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, example), auto_start=False)
    status, known = send_control(service, "stop", reason="not needed")
    assert (status, known["acknowledgement"], known["status"]) == (202, "accepted", "cancelled")
    request = service.request("router")
    assert cancel_reason(request) == ("synth_optimizer_cancelled", "stopped", "not needed")
    assert (request["attempts"], history(service, "router")) == (0, ["submit", "cancel"])


def test_stopping_a_paused_run_completes_with_its_results(service: Service, slow: Example, tmp_path: Path) -> None:
    start_rollouts(service, slow, tmp_path, **LONG)
    wait_until("a generation", has_event(service, "router", "generation.started"))
    send_accepted(service, "pause")
    service.wait("router", "paused")
    send_accepted(service, "stop")
    request = service.wait("router")
    assert (request["status"], request["result"]["stopped_by"]["kind"]) == ("completed", "external")
    assert request["result"]["best_heldout_score"]["n"] == 4


def test_a_reason_is_one_line_without_control_characters(service: Service, example: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, example), auto_start=False)
    send_control(service, "cancel", reason="\x1b[31mred\x1b]0;title\x07\nforged \x9b2J")
    told = service.request("router")["error"]["message"]
    assert told == " [31mred ]0;title  forged  2J"


def test_control_requests_take_effect_at_once_on_a_queued_run(
    service: Service, example: Example, tmp_path: Path
) -> None:
    service.run_id(config_file(tmp_path, example, **TINY), auto_start=False)
    for action, state, acknowledgement in (
        ("resume", "queued", "noop"),
        ("pause", "paused", "accepted"),
        ("pause", "paused", "noop"),
        ("resume", "queued", "accepted"),
        ("cancel", "cancelled", "accepted"),
        ("cancel", "cancelled", "noop"),
        ("stop", "cancelled", "noop"),
    ):
        status, known = send_control(service, action)
        assert (known["status"], known["acknowledgement"]) == (state, acknowledgement), action
        assert status == (202 if acknowledgement == "accepted" else 200)
    assert history(service, "router") == ["submit", "pause", "resume", "cancel"]


@pytest.mark.parametrize("action", ["cancel", "pause", "resume", "stop", "step"])
def test_a_control_request_for_a_missing_run_is_refused(action: str, done: Service) -> None:
    expect_error(done.ask("POST", f"/runs/missing/{action}", {}), 404, "run_not_found")
    expect_error(done.ask("POST", f"/runs/missing/{action}", {"why": "so"}), 422, "invalid_request")
