"""Builds the records of rollouts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .store import DROPPED, StoredRollout
from .values import dump

if TYPE_CHECKING:
    from .calls import Outcome


def now() -> str:
    """Return the time in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def ended_record(rollout_id: str, task_id: str, outcome: Outcome, created_at: str, seconds: float) -> dict[str, Any]:
    """Return the record of a call that returned or failed."""
    record: dict[str, Any] = {"rollout_id": rollout_id, "status": "completed", "created_at": created_at}
    record["updated_at"] = now()
    metadata: dict[str, Any] = {"task_id": task_id, "seconds": round(seconds, 4)}
    if outcome.parts is None:
        failure = outcome.failure
        record["status"] = "failed"
        record["status_detail"] = failure.message if failure else "the call has no outcome"
        if failure and failure.traceback:
            metadata["traceback"] = failure.traceback
        return {**record, "metadata": metadata}
    parts = outcome.parts
    details: dict[str, Any] = {"task_id": task_id}
    if "output" in parts:
        details["output"] = parts["output"]
    record["reward_info"] = {"outcome_reward": parts["score"], "details": details}
    if "feedback" in parts:
        feedback = parts["feedback"]
        record["actionable_side_info"] = feedback if isinstance(feedback, dict) else {"feedback": feedback}
    if parts.get("objectives"):
        scores = parts["objectives"].items()
        record["objective_scores"] = [{"objective": name, "value": value} for name, value in scores]
    for key in ("usage", "trace"):
        if key in parts:
            record[key] = parts[key]
    return {**record, "metadata": metadata}


def interrupted_record(
    rollout_id: str, task_id: str, status: str, reason: str, created_at: str | None = None
) -> dict[str, Any]:
    """Return the record of a rollout without an outcome."""
    return {
        "rollout_id": rollout_id,
        "status": status,
        "status_detail": reason,
        "created_at": created_at or now(),
        "updated_at": now(),
        "metadata": {"task_id": task_id},
    }


def stored_record(rollout_id: str, stored: StoredRollout) -> bytes:
    """Return the record of a remembered rollout that does not run in this process."""
    if stored.record is not None:
        return stored.record
    if stored.state == DROPPED:
        reason = "the rollout ended, but its record was dropped because the state file is full"
    else:
        reason = "the bridge ended while this rollout ran: the function may have run, so it is not run again"
    return encode(interrupted_record(rollout_id, stored.task_id, "failed", reason))


def encode(record: dict[str, Any]) -> bytes:
    """Return a record as JSON."""
    return dump(record).encode()
