"""The limits of a run that are in force, and how much of each is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from synth_optimizers.cli.words import money, span, tokens

if TYPE_CHECKING:
    from synth_optimizers.cli.progress import Progress

__all__ = ["Limit", "limits_in_force"]


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: its name, how much is used, how much is allowed, and both in words."""

    name: str
    used: float
    most: float
    words: str


def limits_in_force(settings: Mapping[str, Any], run: Progress, now: float) -> list[Limit]:
    """Return every limit among the settings of `[gepa]` that is set, in the order in which people think of them."""
    found = []
    for key, name, used, write in _LIMITS:
        most = settings.get(key)
        if most:
            value = used(run, now)
            found.append(Limit(name, value, float(most), f"{write(value)} of {write(most)}"))
    return found


def _time(run: Progress, now: float) -> float:
    if run.clock is None or run.ending is not None:
        return run.elapsed(now)
    seconds, at = run.clock
    return seconds + max(0.0, now - at)


def _used(name: str) -> Callable[[Progress, float], float]:
    return lambda run, _now: run.used.get(name, 0.0)


_LIMITS: tuple[tuple[str, str, Callable[[Progress, float], float], Callable[[float], str]], ...] = (
    ("max_generations", "generations", lambda run, _now: run.generations, tokens),
    ("max_total_rollouts", "rollouts", lambda run, _now: run.spending.rollouts, tokens),
    ("max_train_rollouts", "  train", lambda run, _now: run.spending.train_rollouts, tokens),
    ("max_heldout_rollouts", "  held-out", lambda run, _now: run.spending.heldout_rollouts, tokens),
    ("max_cost_usd", "cost", _used("cost_usd"), money),
    ("max_total_tokens", "tokens", _used("total_tokens"), tokens),
    ("max_prompt_tokens", "  prompt", _used("prompt_tokens"), tokens),
    ("max_completion_tokens", "  completion", _used("completion_tokens"), tokens),
    ("max_time_seconds", "time", _time, span),
)
