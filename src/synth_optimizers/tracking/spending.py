"""What a run has used, as metrics."""

from __future__ import annotations

import math

from synth_optimizers.spending import Spending


class SpendingMetrics:
    """Gives each total of a run when it changes."""

    def __init__(self, spending: Spending) -> None:
        self._spending = spending
        self._given: dict[str, float] = {}

    def changed(self) -> dict[str, float]:
        """Return the totals that are not those that were given last.

        An unknown cost is left out; where a smaller one was given before, NaN takes it back.
        """
        spending = self._spending
        totals: dict[str, float] = {
            "total_metric_calls": spending.train_rollouts,
            "rollouts/heldout": spending.heldout_rollouts,
            "rollouts/failed": spending.failed_rollouts,
            "tokens/prompt": spending.prompt_tokens,
            "tokens/completion": spending.completion_tokens,
            "tokens/total": spending.total_tokens,
            "calls/paid": spending.paid_calls,
            "calls/cached": spending.cached_calls,
        }
        if spending.cost_usd is not None:
            totals["cost_usd"] = spending.cost_usd
        elif "cost_usd" in self._given:
            totals["cost_usd"] = math.nan
        # NaN is the same as NaN here, because it is the same object.
        changed = {name: value for name, value in totals.items() if [value] != [self._given.get(name)]}
        self._given.update(changed)
        return changed
