"""One line for each event that matters to a person who watches a run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from synth_optimizers.cli.words import counted, money, one_line, score, span

if TYPE_CHECKING:
    from synth_optimizers.events import RunEvent

__all__ = ["Line", "Story", "Weight", "stop_reason"]

Weight = Literal["detail", "plain", "good", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Line:
    """A line and how much it weighs; details are left out above a live view."""

    text: str
    weight: Weight = "plain"


SILENT = frozenset(
    {
        "optimizer.state.transitioned",
        "container.task_info.loaded",
        "container.task_info.missing",
        "objective_set.declared",
        "rollout.requested",
        "rollout.finished",
        "clock.observed",
        "frontier.updated",
        "minibatch.skipped",
        # The closing summary says it.
        "gepa.run.finished",
    }
)
"""What is summed up later, or only tells how the machinery moves."""

EVALUATED: dict[str, tuple[str, Weight]] = {
    "candidate.evaluated": ("seed on train rows", "plain"),
    "parent_minibatch_reference.completed": ("parent on the minibatch", "detail"),
    "candidate.minibatch_evaluated": ("screened", "detail"),
    "candidate.full_train_evaluated": ("fully evaluated", "detail"),
    "heldout.completed": ("held-out rows", "plain"),
}
WEIGHTS: dict[str, Weight] = {
    "container.echo.missing": "warning",
    "rollout.transport.fallback": "warning",
    "cache.damaged": "warning",
    "candidate.leakage_detected": "warning",
    "budget.refused": "warning",
    "heldout.partial": "warning",
    "heldout.skipped": "warning",
    "proposal.rejected": "warning",
    "gepa.failure.raised": "bad",
    "gepa.run.failed": "bad",
    "rollout.circuit_breaker.tripped": "bad",
    "candidate.accepted": "good",
    "candidate.promoted": "detail",
    "candidate.rejected": "detail",
    "candidate.deferred": "detail",
    "candidate.registered": "detail",
    "candidate.duplicate_skipped": "detail",
    "generation.started": "detail",
    "proposer.started": "detail",
    "proposer.completed": "detail",
    "proposer.failed": "warning",
    "rollout.concurrency.adjusted": "detail",
}


class Story:
    """Tells the events of one run; a rollout that fails is told once for each way in which rollouts fail."""

    MOST_FAILURES = 5

    def __init__(self) -> None:
        self._failures: set[str] = set()

    def tell(self, event: RunEvent, seconds: float | None = None) -> Line | None:
        """Return the line of an event, or nothing; `seconds` is how long its turn or evaluation took."""
        fields = event.fields
        if event.type == "rollout.failed":
            return self._failed(event)
        if event.type in SILENT or (event.type == "candidate.accepted" and fields.get("reason") == "seed"):
            return None
        if event.type in EVALUATED:
            what, weight = EVALUATED[event.type]
            return Line(_evaluated(what, fields, seconds), weight)
        return Line(" ".join(_words(event, seconds).split()), WEIGHTS.get(event.type, "plain"))

    def _failed(self, event: RunEvent) -> Line | None:
        fields = event.fields
        kind = f"{fields['class']} {re.sub(r'[0-9]+', '', fields['message'])}"
        told = kind in self._failures or len(self._failures) == self.MOST_FAILURES
        if told or fields["class"] in ("withdrawn", "abandoned"):
            return None
        self._failures.add(kind)
        return Line(f"{event.message}: {one_line(fields['message'], 200)} (others like it are only counted)", "warning")


def _words(event: RunEvent, seconds: float | None) -> str:
    fields = event.fields
    match event.type:
        case "gepa.run.started":
            return f"run {event.run_id} against {fields['container_url']}, seed {fields['seed']}"
        case "candidate.registered":
            return _registered(fields)
        case "proposer.completed":
            return f"{event.message} {_took(seconds)}by {fields['effective_model']}, {_paid(fields)}"
        case "generation.completed":
            best = score(fields["best_train_score"])
            return f"{event.message.split(', best')[0]}; best {fields['best_candidate_id']} {best}"
        case "gepa.stop":
            return _stopped(fields["stopped_by"])
        case "gepa.run.failed" | "gepa.failure.raised" | "proposer.failed":
            return f"{event.message}: {one_line(fields['message'])}"
        case "proposal.rejected":
            return f"{event.message} ({one_line('; '.join(problem['message'] for problem in fields['problems']))})"
        case "proposer.ready":
            return f"{event.message} ({fields['source']}, {fields['sandbox']})"
    reason = fields.get("reason")
    if isinstance(reason, str) and reason and reason not in event.message:
        return f"{event.message}: {one_line(reason)}"
    return event.message


def _evaluated(what: str, fields: dict[str, Any], seconds: float | None) -> str:
    missing = f", {fields['failed']} of {fields['rows']} without a score" if fields["failed"] else ""
    took = f" ({counted(fields['rows'], 'rollout')} in {span(seconds)})" if seconds is not None else ""
    return f"{fields['candidate_id']} {what}: {score(fields['score'])}{missing}{took}"


def _registered(fields: dict[str, Any]) -> str:
    if fields["operation"] == "seed":
        return f"{fields['candidate_id']} is the seed"
    parents = " and ".join(fields["parent_ids"])
    how = "merges" if fields["operation"] == "merge" else f"changes {', '.join(fields['changed_fields'])} of"
    why = f": {one_line(fields['rationale'], 80)}" if fields["rationale"] else ""
    return f"{fields['candidate_id']} {how} {parents}{why}"


def _took(seconds: float | None) -> str:
    return "" if seconds is None else f"in {span(seconds)} "


def _paid(fields: dict[str, Any]) -> str:
    return "from the cache" if fields["cached"] else f"cost {money(fields['usage'].get('cost_usd'))}"


def _stopped(by: dict[str, Any]) -> str:
    return f"search ends: {stop_reason(by)}"


def stop_reason(by: dict[str, Any]) -> str:
    """Say which rule ended the search, with the limit and the reason."""
    text = str(by["kind"])
    if by.get("value") is not None and by.get("limit") is not None:
        text += f" ({by['value']:g} of {by['limit']:g})"
    if by.get("reason"):
        text += f": {one_line(by['reason'])}"
    return text
