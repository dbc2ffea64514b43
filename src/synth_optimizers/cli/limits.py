"""The limits of a run that are in force, and how much of each is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from synth_optimizers.cli.words import money, span, tokens

if TYPE_CHECKING:
    from synth_optimizers.cli.progress import Progress


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
    totals = run.totals
    for key, name, used, write in _LIMITS:
        most = settings.get(key)
        if most:
            value = used(run, totals, now)
            found.append(Limit(name, value, float(most), f"{write(value)} of {write(most)}"))
    return found


def _time(run: Progress, totals: Mapping[str, Any], now: float) -> float:
    if totals["clock"] is None or run.ending is not None:
        return run.elapsed(now)
    millis, at = totals["clock"]
    return float(millis / 1000 + max(0.0, now - at / 1000))


def _used(read: Callable[[Mapping[str, Any]], float]) -> Callable[[Progress, Mapping[str, Any], float], float]:
    return lambda _run, totals, _now: read(totals)


_Use = Callable[["Progress", Mapping[str, Any], float], float]

_LIMITS: tuple[tuple[str, str, _Use, Callable[[float], str]], ...] = (
    ("max_generations", "generations", _used(lambda run: run["generations"]), tokens),
    ("max_total_rollouts", "rollouts", _used(lambda run: run["train_rollouts"] + run["heldout_rollouts"]), tokens),
    ("max_train_rollouts", "  train", _used(lambda run: run["train_rollouts"]), tokens),
    ("max_heldout_rollouts", "  held-out", _used(lambda run: run["heldout_rollouts"]), tokens),
    ("max_cost_usd", "cost", _used(lambda run: run["limited"]["known_cost_nano_usd"] / 1e9), money),
    ("max_total_tokens", "tokens", _used(lambda run: run["limited"]["total_tokens"]), tokens),
    ("max_prompt_tokens", "  prompt", _used(lambda run: run["limited"]["prompt_tokens"]), tokens),
    ("max_completion_tokens", "  completion", _used(lambda run: run["limited"]["completion_tokens"]), tokens),
    ("max_time_seconds", "time", _time, span),
)
