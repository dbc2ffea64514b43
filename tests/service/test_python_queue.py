"""The queue without HTTP: every Python function on run requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.example import Example
from support.polling import WAIT_TIMEOUT_SECONDS, wait_until

from service.python_queue import claim_request, python_process, submit_run
from synth_optimizers import (
    GepaRun,
    workspace_cancel_run_request,
    workspace_claim_next_run_request,
    workspace_complete_run_request,
    workspace_fail_run_request,
    workspace_heartbeat_run_request,
    workspace_recover_expired_run_requests,
    workspace_start_run_request,
    workspace_status,
    workspace_submit_run_request,
)
from synth_optimizers.errors import ConfigError, StateTransitionError, SynthOptimizerError


def test_a_run_request_from_submission_to_completion(db: Path, example: Example) -> None:
    request_id = submit_run(db, example)
    entry = claim_request(db)
    assert (entry["request_id"], entry["status"], entry["attempts"]) == (request_id, "leased", 1)
    assert (entry["lease_id"], entry["worker_id"]) == ("lease-1", "worker-1")
    started = workspace_start_run_request(db, request_id, lease_id="lease-1")
    assert started["status"] == "running"
    assert started["started_at"] is not None
    beaten = workspace_heartbeat_run_request(db, request_id, "lease-1", 7200)
    assert beaten is not None
    assert beaten["lease_expires_at"] > started["lease_expires_at"]
    with pytest.raises(StateTransitionError):
        workspace_start_run_request(db, request_id, lease_id="lease-1")
    result = GepaRun.from_toml(db.parent / "gepa.toml").execute()
    done = workspace_complete_run_request(db, request_id, lease_id="lease-1")
    assert (done["status"], done["is_terminal"], done["lease_id"]) == ("completed", True, None)
    # The run request carries the summary of the run.
    assert done["best_candidate_id"] == result.best_candidate["candidate_id"]
    assert done["result_manifest_path"] == str(result.manifest_path)
    assert done["run_workspace_db_path"] == str(result.workspace_db_path)
    assert done["cost_usd"] == result.cost_usd == 0.0
    assert done["usage"]["rollout_calls"] == result.usage["rollout_calls"] > 0
    assert done["result"]["state"] == "completed"
    assert workspace_claim_next_run_request(db, "lease-2") is None
    with pytest.raises(StateTransitionError):
        workspace_complete_run_request(db, request_id)


def test_a_run_request_without_a_run_directory_completes_without_a_summary(db: Path, example: Example) -> None:
    request_id = submit_run(db, example)
    claim_request(db)
    workspace_start_run_request(db, request_id)
    done = workspace_complete_run_request(db, request_id)
    assert done["status"] == "completed"
    summary = ("run_workspace_db_path", "result_manifest_path", "best_candidate_id", "cost_usd", "usage", "result")
    assert [done[name] for name in summary] == [None] * len(summary)


def test_a_second_run_request_waits_for_the_lane_of_the_first(db: Path, example: Example) -> None:
    first, second = submit_run(db, example, "first"), submit_run(db, example, "second")
    assert claim_request(db)["request_id"] == first
    assert workspace_claim_next_run_request(db, "lease-2") is None
    known = {entry["request_id"]: entry for entry in workspace_status(db)["run_requests"]}
    assert known[second]["waiting"]["reason"] == "container_busy"
    workspace_fail_run_request(db, first, "given up", lease_id="lease-1")
    assert claim_request(db, "lease-2")["request_id"] == second


def test_run_requests_are_claimed_by_priority_then_age(db: Path, example: Example) -> None:
    for name, priority in (("a", 0), ("b", 2), ("c", 2)):
        submit_run(db, example, name, priority)
    order = []
    while (entry := workspace_claim_next_run_request(db, "lease")) is not None:
        order.append(entry["run_id"])
        workspace_fail_run_request(db, entry["request_id"], "next")
    assert order == ["b", "c", "a"]


def test_a_failure_has_a_message_and_a_reason(db: Path, example: Example) -> None:
    request_id = submit_run(db, example)
    claim_request(db)
    failed = workspace_fail_run_request(db, request_id, "the disk is full", "disk_full", lease_id="lease-1")
    assert failed["status"] == "failed"
    assert failed["finished_at"] is not None
    assert (failed["error"]["message"], failed["error"]["reason_code"]) == ("the disk is full", "disk_full")
    with pytest.raises(StateTransitionError):
        workspace_fail_run_request(db, request_id, "again")


def test_a_queued_or_leased_run_request_can_be_cancelled(db: Path, example: Example) -> None:
    waiting, held = submit_run(db, example, "waiting"), submit_run(db, example, "held", 5)
    cancelled = workspace_cancel_run_request(db, waiting, "not needed")
    assert (cancelled["status"], cancelled["error"]["message"]) == ("cancelled", "not needed")
    with python_process(CLAIMS_ONE, db, cwd=db.parent) as holder:
        out, err = holder.communicate(timeout=WAIT_TIMEOUT_SECONDS)
    assert out.strip() == held, err
    # The worker that holds the lease learns of the cancellation, and reports the end of the run.
    asked = workspace_cancel_run_request(db, held, "not needed either")
    assert (asked["status"], asked["waiting"]["reason"]) == ("leased", "stopping")
    beaten = workspace_heartbeat_run_request(db, held, "lease-1")
    assert beaten is not None
    assert beaten["waiting"]["reason"] == "stopping"
    with pytest.raises(StateTransitionError):
        workspace_cancel_run_request(db, held, lease_id="lease-2")
    over = workspace_cancel_run_request(db, held, "it has stopped", lease_id="lease-1")
    assert (over["status"], over["is_terminal"], over["lease_id"]) == ("cancelled", True, None)


def test_the_lease_holder_can_cancel_its_run_request(db: Path, example: Example) -> None:
    request_id = submit_run(db, example)
    claim_request(db)
    over = workspace_cancel_run_request(db, request_id, "not needed")
    assert (over["status"], over["error"]["message"]) == ("cancelled", "not needed")


def test_a_reused_lease_id_does_not_revive_an_old_lease(db: Path, example: Example) -> None:
    request_id = submit_run(db, example)
    claim_request(db, "lease-1", 0.2)
    wait_until("the end of the lease", lambda: workspace_recover_expired_run_requests(db))
    with python_process(CLAIMS_ONE, db, cwd=db.parent) as holder:
        out, err = holder.communicate(timeout=WAIT_TIMEOUT_SECONDS)
    assert out.strip() == request_id, err
    assert workspace_heartbeat_run_request(db, request_id, "lease-1") is None
    for act in (workspace_start_run_request, workspace_complete_run_request, workspace_cancel_run_request):
        with pytest.raises(StateTransitionError, match="has ended"):
            act(db, request_id, lease_id="lease-1")
    with pytest.raises(StateTransitionError, match="has ended"):
        workspace_fail_run_request(db, request_id, "no", lease_id="lease-1")
    assert workspace_status(db)["run_requests"][0]["status"] == "leased"


def test_an_expired_lease_is_recovered_and_its_holder_is_fenced_off(db: Path, example: Example) -> None:
    request_id = submit_run(db, example)
    first = claim_request(db, "lease-old", 0.2)
    workspace_start_run_request(db, request_id, lease_id="lease-old")
    taken: list[dict[str, Any]] = []

    def recovered() -> bool:
        taken.extend(workspace_recover_expired_run_requests(db))
        return bool(taken)

    wait_until("the end of the lease", recovered)
    assert [(entry["request_id"], entry["status"], entry["recoveries"]) for entry in taken] == [
        (request_id, "queued", 1)
    ]
    assert workspace_recover_expired_run_requests(db) == []
    second = claim_request(db, "lease-new")
    assert second["fencing_token"] > first["fencing_token"]
    assert second["attempts"] == 2
    for act in (workspace_start_run_request, workspace_complete_run_request):
        with pytest.raises(StateTransitionError, match="lease"):
            act(db, request_id, lease_id="lease-old")
    with pytest.raises(StateTransitionError):
        workspace_fail_run_request(db, request_id, "late", lease_id="lease-old")
    assert workspace_heartbeat_run_request(db, request_id, "lease-old") is None
    # The new lease is unaffected.
    (entry,) = workspace_status(db)["run_requests"]
    assert entry["lease_id"] == "lease-new"
    assert workspace_start_run_request(db, request_id, lease_id="lease-new")["status"] == "running"


def test_a_claim_recovers_expired_leases(db: Path, example: Example) -> None:
    submit_run(db, example)
    claim_request(db, "lease-old", 0.1)
    wait_until("the claim", lambda: workspace_claim_next_run_request(db, "lease-new"))
    (entry,) = workspace_status(db)["run_requests"]
    assert (entry["lease_id"], entry["recoveries"]) == ("lease-new", 1)


def test_missing_run_requests_and_invalid_arguments_are_refused(db: Path, example: Example) -> None:
    submit_run(db, example)
    for call in (workspace_start_run_request, workspace_complete_run_request, workspace_cancel_run_request):
        with pytest.raises(SynthOptimizerError, match="runreq_nobody"):
            call(db, "runreq_nobody")
    with pytest.raises(StateTransitionError, match="router"):
        workspace_submit_run_request(db, db.parent / "gepa.toml")
    (db.parent / "bad.toml").write_text("[gepa]\nminibatch_size = 0\n", encoding="utf-8")
    with pytest.raises(ConfigError):
        workspace_submit_run_request(db, db.parent / "bad.toml")
    assert len(workspace_status(db)["run_requests"]) == 1


CLAIMS = """
import json, sys
from synth_optimizers import workspace_claim_next_run_request, workspace_fail_run_request
db, name = sys.argv[1:]
sys.stdin.readline()
found = []
for number in range(200):
    entry = workspace_claim_next_run_request(db, f"{name}-{number}", name)
    if entry is not None:
        found.append(entry["request_id"])
        workspace_fail_run_request(db, entry["request_id"], "done", lease_id=f"{name}-{number}")
print(json.dumps(found))
"""


CLAIMS_ONE = """
import sys
from synth_optimizers import workspace_claim_next_run_request
print(workspace_claim_next_run_request(sys.argv[1], "lease-1", "worker-1")["request_id"])
"""


def test_two_processes_never_claim_the_same_run_request(db: Path, example: Example) -> None:
    wanted = {submit_run(db, example, f"r{number}") for number in range(40)}
    with (
        python_process(CLAIMS, db, "one", cwd=db.parent) as one,
        python_process(CLAIMS, db, "two", cwd=db.parent) as two,
    ):
        for process in (one, two):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        found = []
        for process in (one, two):
            out, err = process.communicate(timeout=WAIT_TIMEOUT_SECONDS)
            assert process.returncode == 0, err
            found.append(json.loads(out))
    assert set(found[0]) | set(found[1]) == wanted
    assert len(found[0]) + len(found[1]) == len(wanted)
    assert {entry["attempts"] for entry in workspace_status(db)["run_requests"]} == {1}
