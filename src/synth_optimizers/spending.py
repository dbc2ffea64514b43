"""What the calls of a run have used so far, folded from its events as the run itself counts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["NEVER_SENT", "Spending", "total_of"]

NEVER_SENT = frozenset({"not_sent", "withdrawn"})
"""Failures of calls that nobody has seen: they count for nothing."""

OUTCOME_UNKNOWN = frozenset({"unknown_outcome", "abandoned"})
"""Failures of calls that may have run: they are paid for, and nobody knows how much."""

NANO = 1_000_000_000


@dataclass(slots=True)
class Spending:
    """Rollouts, calls, tokens and money. Tokens and money are those of paid calls, as far as known."""

    train_rollouts: int = 0
    heldout_rollouts: int = 0
    failed_rollouts: int = 0
    paid_calls: int = 0
    cached_calls: int = 0
    unknown_outcomes: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    unpriced_calls: int = 0
    known_cost_nano_usd: int = 0

    @property
    def rollouts(self) -> int:
        """Rollouts that count against the limits."""
        return self.train_rollouts + self.heldout_rollouts

    @property
    def cost_usd(self) -> float | None:
        """What was paid; unknown as soon as the cost of one paid call is."""
        return None if self.unpriced_calls else self.known_cost_nano_usd / NANO

    def count_rollout(self, fields: dict[str, Any]) -> None:
        """Count the answer to a rollout: `rollout.finished` or `rollout.failed`."""
        if fields.get("class") in NEVER_SENT:
            return
        if fields["stage"] == "heldout":
            self.heldout_rollouts += 1
        else:
            self.train_rollouts += 1
        self.failed_rollouts += "class" in fields
        self.count_call(fields)

    def count_call(self, fields: dict[str, Any]) -> None:
        """Count an answer of the container or the proposer. A cached one is not paid for."""
        failure, usage = fields.get("class"), fields["usage"]
        if failure in NEVER_SENT:
            return
        cost = usage.get("cost_usd")
        if failure in OUTCOME_UNKNOWN:
            self.unknown_outcomes += 1
            cost = None
        elif fields["cached"]:
            self.cached_calls += 1
            return
        self.paid_calls += 1
        self.prompt_tokens += usage.get("prompt_tokens") or 0
        self.completion_tokens += usage.get("completion_tokens") or 0
        self.total_tokens += total_of(usage) or 0
        if cost is None:
            self.unpriced_calls += 1
        else:
            # Billionths of a dollar, so that sums are exact.
            self.known_cost_nano_usd += round(cost * NANO)

    def settle(self, rollouts: dict[str, Any], bill: dict[str, Any]) -> None:
        """Take over the totals with which the run ended."""
        self.train_rollouts, self.heldout_rollouts = rollouts["train"], rollouts["heldout"]
        self.unknown_outcomes = rollouts["unknown_outcomes"]
        for name in ("paid_calls", "cached_calls", "prompt_tokens", "completion_tokens", "total_tokens"):
            setattr(self, name, bill[name])
        cost = bill["cost_usd"]
        self.unpriced_calls = int(cost is None)
        self.known_cost_nano_usd = round((cost or 0.0) * NANO)


def total_of(usage: dict[str, Any]) -> int | None:
    """Return the stated total of tokens, or the sum of both parts when both are known."""
    total: int | None = usage.get("total_tokens")
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if total is None and prompt is not None and completion is not None:
        return int(prompt) + int(completion)
    return total
