"""Folds events into the metrics that trackers forward. `docs/reference/metrics.md` lists them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from synth_optimizers._synth_optimizers import RunFold
from synth_optimizers.events import RunEvent

Text = str | int | float

SEQUENCE_NUMBER = "sequence_number"
"""The metric that holds the sequence number of the last event a tracker received."""

_COUNTED_EVENTS = {
    "candidate.deferred": ("candidates/deferred", "deferred"),
    "proposal.rejected": ("proposals/refused", "proposals_refused"),
    "candidate.duplicate_skipped": ("proposals/duplicate", "proposals_duplicate"),
}
"""Events that change one total: its metric, and its name in the totals."""
_USAGE_METRICS = {
    "tokens/prompt": "prompt_tokens",
    "tokens/completion": "completion_tokens",
    "tokens/total": "total_tokens",
    "calls/sent": "sent_calls",
    "calls/cached": "cached_calls",
    "cost_usd": "cost_usd",
}
"""The usage of a run, by metric."""


@dataclass(slots=True)
class Feed:
    """The identity of one run's feed, and the position in it."""

    run_id: str
    started_at: str
    """When the run started; empty if the feed was joined later."""
    last: int
    """The sequence number of the last applied event."""

    @classmethod
    def of(cls, event: RunEvent) -> Feed:
        """Return the feed of the run of this event, at the position before the event."""
        is_start = event.sequence_number == 0
        return cls(event.run_id, event.ts if is_start else "", event.sequence_number - 1)

    @property
    def is_whole(self) -> bool:
        """Whether the feed was read from its first event."""
        return bool(self.started_at)

    @property
    def key(self) -> str:
        """A key that is unique to this run, also among runs restarted under the same run id."""
        return hashlib.sha256(f"{self.run_id}\n{self.started_at}".encode()).hexdigest()[:16]

    def contains(self, event: RunEvent) -> bool:
        """Return whether an event belongs to this run."""
        is_start = event.sequence_number == 0
        return event.run_id == self.run_id and not (is_start and self.is_whole and event.ts != self.started_at)

    def advance(self, event: RunEvent) -> bool:
        """Advance to an event, and return whether it is new."""
        is_new = event.sequence_number > self.last
        self.last = max(self.last, event.sequence_number)
        return is_new


def epoch_micros(ts: str) -> int:
    """Convert the timestamp of an event to microseconds since the epoch."""
    return round(datetime.fromisoformat(ts).timestamp() * 1_000_000)


@dataclass(frozen=True, slots=True)
class Update:
    """The changes of one event."""

    step: int
    time_ms: int
    metrics: dict[str, float]
    params: dict[str, Text]


class Metrics:
    """The metrics of one run. A feed that is joined in the middle yields no counts before the run ends."""

    def __init__(self, event: RunEvent) -> None:
        self.feed = Feed.of(event)
        self.outcome = "interrupted"
        """The outcome of the run: completed, failed, cancelled, or interrupted, which can be resumed."""
        self.texts: dict[str, Text] = {}
        """The closing texts."""
        self._fold = RunFold()
        self._last_totals: dict[str, float] = {}
        """The totals that were last returned."""
        self._answered_calls = 0
        self._last_step = 0
        self._params: dict[str, Text] = {}
        self._pareto_rows = 0
        self._best_score: float | None = None

    def fold(self, event: RunEvent) -> Update | None:
        """Apply an event. Return `None` if it was applied before or changes no metric."""
        if not self.feed.advance(event):
            return None
        self._fold.apply(event.sequence_number, event.ts, event.type, event.fields, event.message)
        params = {name: value for name, value in self._run_params(event).items() if name not in self._params}
        self._params.update(params)
        metrics = self._event_metrics(event)
        if not metrics and not params:
            return None
        if metrics and self.feed.is_whole:
            metrics.update(self._changed_totals(self._current_totals()))
        metrics[SEQUENCE_NUMBER] = event.sequence_number
        return Update(self._step(), epoch_micros(event.ts) // 1000, metrics, params)

    def _step(self) -> int:
        # Calls are numbered over rollouts and proposer turns; without the start of the feed, this is an approximation.
        totals = self._fold.totals()
        rollouts = int(totals["train_rollouts"] + totals["heldout_rollouts"])
        return rollouts if self.feed.is_whole else max(self._answered_calls, rollouts, self._last_step)

    def _run_params(self, event: RunEvent) -> dict[str, Text]:
        fields = event.fields
        match event.type:
            case "gepa.run.started":
                started = {name: fields[name] for name in ("algorithm", "seed", "config_digest")}
                return {"run_id": event.run_id, **started}
            case "container.program.loaded":
                components = ",".join(fields["target_fields"])
                return {"program_id": fields["program_id"], "seed_candidate_components": components}
            case "dataset.rows.loaded":
                self._pareto_rows = fields["pareto_pool"]
                sizes = {"trainset_size": fields["minibatch_pool"], "valset_size": fields["pareto_pool"]}
                return {**sizes, "heldout_size": fields["heldout_pool"]}
            case "objective_set.declared":
                return {name: fields[name] for name in ("selection_objective", "frontier_type")}
            case "proposer.ready":
                return {f"proposer_{name}": fields[name] for name in ("backend", "model")}
            case _:
                return {}

    def _event_metrics(self, event: RunEvent) -> dict[str, float]:
        fields = event.fields
        match event.type:
            case "candidate.registered" if fields["operation"] == "seed":
                self.texts.update({f"seed/{name}": text for name, text in fields["payload"].items()})
            case "rollout.finished" | "rollout.failed":
                self._answered_calls = max(self._answered_calls, fields["call_id"] + 1)
            case "candidate.evaluated" | "candidate.full_train_evaluated":
                return self._evaluation_metrics(fields)
            case "candidate.promoted":
                return _minibatch_metrics(fields)
            case "candidate.rejected":
                return {**_minibatch_metrics(fields), **self._total_metric("candidates/rejected", "rejected")}
            case "candidate.accepted":
                # The initial candidate is accepted too, but not counted, because it was not proposed.
                counted = self._total_metric("candidates/accepted", "accepted") if fields["reason"] != "seed" else {}
                return {**counted, **self._best_score_change()}
            case "frontier.updated":
                return self._frontier_metrics(fields)
            case "generation.started":
                return {"iteration": fields["generation"] + 1}
            case "generation.completed":
                best = self._best_score_change(fields["best_train_score"])
                return {"candidates/registered": fields["candidates"], **best}
            case "proposer.completed" | "proposer.failed":
                has_failed = event.type == "proposer.failed"
                failed = self._total_metric("proposer/failed_turns", "turns_failed") if has_failed else {}
                turns = {"proposer/turns": self._fold.totals()["usage"]["proposer_calls"]} if self.feed.is_whole else {}
                return {**turns, **failed}
            case "gepa.run.finished" | "gepa.run.failed" | "gepa.run.cancelled":
                return self._final_metrics(event)
            case kind if kind in _COUNTED_EVENTS:
                return self._total_metric(*_COUNTED_EVENTS[kind])
        return {}

    def _current_totals(self) -> dict[str, float | None]:
        """Return the totals as the core counts them."""
        totals = self._fold.totals()
        rollouts = {"train": totals["train_rollouts"], "heldout": totals["heldout_rollouts"]}
        return {**_usage_totals(rollouts, totals["usage"]), "rollouts/failed": totals["rollouts_failed"]}

    def _changed_totals(self, totals: dict[str, float | None]) -> dict[str, float]:
        """Return the totals that differ from those last returned.

        An unknown cost is left out; NaN replaces a cost that was reported before and is now unknown.
        """
        known = {name: value for name, value in totals.items() if value is not None}
        if totals["cost_usd"] is None and "cost_usd" in self._last_totals:
            known["cost_usd"] = math.nan
        # The comparison holds for NaN, because it is the same object.
        changed = {name: value for name, value in known.items() if [value] != [self._last_totals.get(name)]}
        self._last_totals.update(changed)
        return changed

    def _total_metric(self, name: str, total: str) -> dict[str, float]:
        """Return a total of the run by the name of its metric."""
        return {name: self._fold.totals()[total]} if self.feed.is_whole else {}

    def _evaluation_metrics(self, fields: dict[str, Any]) -> dict[str, float]:
        score = fields["score"]
        if score is None:
            return {}
        total = {"val_total_count": self._pareto_rows} if self._pareto_rows else {}
        return {"val_program_average": score["mean"], "val_evaluated_count_new_program": score["n"], **total}

    def _best_score_change(self, reported: dict[str, Any] | None = None) -> dict[str, float]:
        """Return the train score of the best candidate if it changed."""
        score = self._fold.shown()["best_train_score"] or reported
        if score is None or score["mean"] == self._best_score:
            return {}
        self._best_score = score["mean"]
        return {"best_score_on_valset": score["mean"]}

    def _frontier_metrics(self, fields: dict[str, Any]) -> dict[str, float]:
        found = {"frontier_size": fields["size"], **self._total_metric("total_candidates", "frontier_candidates")}
        if self.feed.is_whole and (mean := self._fold.shown()["frontier_mean"]) is not None:
            found["valset_pareto_front_agg"] = mean
        return found

    def _final_metrics(self, event: RunEvent) -> dict[str, float]:
        fields = event.fields
        self.outcome = event.type.removeprefix("gepa.run.").replace("finished", "completed")
        self.texts["best_candidate_id"] = fields["best_candidate_id"] or "none"
        totals = self._current_totals()
        if not self.feed.is_whole:
            # Events before the feed was joined are known only from the totals of the last event.
            totals = _usage_totals(fields["rollouts"], fields["bill"])
            self._last_step = int(fields["rollouts"]["train"] + fields["rollouts"]["heldout"])
        found = self._changed_totals(totals)
        if self.outcome != "completed":
            return found
        self.texts["stopped_by"] = fields["stopped_by"]["kind"]
        scores = {f"{known['split']}/{known['role']}": known["score"]["mean"] for known in fields["scores"]}
        for split in ("train", "heldout"):
            if gain := fields.get(f"{split}_gain"):
                scores[f"{split}/gain"] = gain["difference"]
                scores |= {f"{split}/gain_{end}": gain[end] for end in ("low", "high") if gain[end] is not None}
        if "train/best" in scores:
            scores["best_valset_score"] = scores["train/best"]
        ends = {"total_iterations": fields["generations"], "candidates/registered": fields["candidates"]}
        return {**found, **scores, **ends}


def _usage_totals(rollouts: dict[str, Any], bill: dict[str, Any]) -> dict[str, float | None]:
    """Return the totals that the last event of a run reports."""
    used = {metric: bill[name] for metric, name in _USAGE_METRICS.items()}
    return {"total_metric_calls": rollouts["train"], "rollouts/heldout": rollouts["heldout"], **used}


def _minibatch_metrics(fields: dict[str, Any]) -> dict[str, float]:
    """Return parent and candidate on the rows of a minibatch: sums, as gepa reports them, and means."""
    comparison = fields.get("comparison")
    if comparison is None or fields["stage"] != "candidate_minibatch":
        return {}
    before, after, rows = comparison["incumbent_score"], comparison["candidate_score"], comparison["rows"]
    sums = {"subsample/before": before * rows, "subsample/after": after * rows}
    return {**sums, "minibatch/before": before, "minibatch/after": after}
