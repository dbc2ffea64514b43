"""Scores and gains with their uncertainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Score:
    """A mean over rows, with its standard error and 95 % interval."""

    mean: float
    """The mean."""
    n: int
    """How many rows it rests on."""
    standard_error: float | None
    """Unknown for fewer than two rows."""
    low: float | None
    """Where the interval begins."""
    high: float | None
    """Where it ends."""

    def __str__(self) -> str:
        return f"{self.mean:.3f}{_interval(self.low, self.high)} (n={self.n})"


@dataclass(frozen=True, slots=True)
class Gain:
    """A paired difference on the same rows, with its 95 % interval."""

    difference: float
    """How much better the candidate is, on average."""
    n: int
    """How many rows both were measured on."""
    low: float | None
    """Where the interval begins."""
    high: float | None
    """Where it ends."""
    wins: int
    """Rows on which the candidate is better."""
    losses: int
    """Rows on which it is worse."""
    ties: int
    """Rows on which both are equal."""

    def __str__(self) -> str:
        return f"{self.difference:+.3f}{_interval(self.low, self.high, sign='+')} (n={self.n})"


@dataclass(frozen=True, slots=True)
class Scores:
    """Seed and best, on train and held-out rows; what was not measured is `None`."""

    seed_train: Score | None
    """The seed on train rows."""
    best_train: Score | None
    """The best candidate on train rows."""
    seed_heldout: Score | None
    """The seed on held-out rows."""
    best_heldout: Score | None
    """The best candidate on held-out rows."""
    train_gain: Gain | None
    """Best against seed on train rows; the search has chosen by these, so it flatters."""
    heldout_gain: Gain | None
    """Best against seed on rows that chose nothing."""

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Scores:
        """Read the scores of a result manifest."""
        known = manifest.get("scores") or {}
        pairs = [(role, split) for role in ("seed", "best") for split in ("train", "heldout")]
        scores = {f"{role}_{split}": score_of(known.get(role, {}).get(split)) for role, split in pairs}
        train_gain, heldout_gain = gain_of(manifest.get("train_gain")), gain_of(manifest.get("heldout_gain"))
        return cls(**scores, train_gain=train_gain, heldout_gain=heldout_gain)

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as plain objects."""
        return asdict(self)


def score_of(known: Mapping[str, Any] | None) -> Score | None:
    """Read a score as the core writes it."""
    return None if known is None else Score(**{name: known[name] for name in Score.__slots__})


def gain_of(known: Mapping[str, Any] | None) -> Gain | None:
    """Read a gain as the core writes it."""
    return None if known is None else Gain(**{name: known[name] for name in Gain.__slots__})


def _interval(low: float | None, high: float | None, sign: str = "") -> str:
    return "" if low is None or high is None else f" [{low:{sign}.3f}, {high:{sign}.3f}]"
