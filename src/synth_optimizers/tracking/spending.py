"""What the calls of a run have used so far, counted as the run itself counts it."""

from __future__ import annotations

import math
from typing import Any

_NEVER_SENT = frozenset({"not_sent", "withdrawn"})
_OUTCOME_UNKNOWN = frozenset({"unknown_outcome", "abandoned"})
_NANO_DIGITS = 9


class Spending:
    """Rollouts, tokens, calls and money."""

    def __init__(self) -> None:
        self.train_rollouts = 0
        self.heldout_rollouts = 0
        self.failed_rollouts = 0
        self._tokens = {"prompt": 0, "completion": 0, "total": 0}
        self._paid_calls = 0
        self._cached_calls = 0
        self._cost: float | None = 0.0
        self._given: dict[str, float] = {}

    @property
    def rollouts(self) -> int:
        """Rollouts that count against the limits."""
        return self.train_rollouts + self.heldout_rollouts

    def count_rollout(self, fields: dict[str, Any]) -> None:
        """Count the answer to a rollout: `rollout.finished` or `rollout.failed`."""
        if fields.get("class") in _NEVER_SENT:
            return
        if fields["stage"] == "heldout":
            self.heldout_rollouts += 1
        else:
            self.train_rollouts += 1
        self.failed_rollouts += "class" in fields
        self.count_call(fields)

    def count_call(self, fields: dict[str, Any]) -> None:
        """Count an answer of the container or the proposer. A cached one is not paid for."""
        failure = fields.get("class")
        if failure in _NEVER_SENT:
            return
        if fields["cached"] and failure not in _OUTCOME_UNKNOWN:
            self._cached_calls += 1
            return
        self._paid_calls += 1
        usage = fields["usage"]
        prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
        self._tokens["prompt"] += prompt
        self._tokens["completion"] += completion
        total = usage.get("total_tokens")
        self._tokens["total"] += prompt + completion if total is None else total
        cost = None if failure in _OUTCOME_UNKNOWN else usage.get("cost_usd")
        self._cost = None if cost is None or self._cost is None else self._cost + cost

    def settle(self, rollouts: dict[str, Any], bill: dict[str, Any]) -> None:
        """Take over the totals with which the run ended."""
        self.train_rollouts, self.heldout_rollouts = rollouts["train"], rollouts["heldout"]
        self._tokens = {name: bill[f"{name}_tokens"] for name in self._tokens}
        self._paid_calls, self._cached_calls = bill["paid_calls"], bill["cached_calls"]
        self._cost = bill["cost_usd"]

    def metrics(self) -> dict[str, float]:
        """Return the totals that are not those that were given last.

        An unknown cost is left out; where a smaller one was given before, NaN takes it back.
        """
        totals: dict[str, float] = {
            "total_metric_calls": self.train_rollouts,
            "rollouts/heldout": self.heldout_rollouts,
            "rollouts/failed": self.failed_rollouts,
            **{f"tokens/{name}": count for name, count in self._tokens.items()},
            "calls/paid": self._paid_calls,
            "calls/cached": self._cached_calls,
        }
        if self._cost is not None:
            totals["cost_usd"] = round(self._cost, _NANO_DIGITS)
        elif "cost_usd" in self._given:
            totals["cost_usd"] = math.nan
        # NaN is the same as NaN here, because it is the same object.
        changed = {name: value for name, value in totals.items() if [value] != [self._given.get(name)]}
        self._given.update(changed)
        return changed
