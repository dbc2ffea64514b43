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
    """The number of rows."""
    standard_error: float | None
    """`None` for fewer than two rows."""
    low: float | None
    """The lower bound of the interval."""
    high: float | None
    """The upper bound of the interval."""

    def __str__(self) -> str:
        return f"{self.mean:.3f}{_interval(self.low, self.high)} (n={self.n})"


@dataclass(frozen=True, slots=True)
class Gain:
    """A paired difference on the same rows, with its 95 % interval."""

    difference: float
    """The mean difference; positive if the candidate is better."""
    n: int
    """The number of rows on which both have a score."""
    low: float | None
    """The lower bound of the interval."""
    high: float | None
    """The upper bound of the interval."""
    wins: int
    """Rows on which the candidate is better."""
    losses: int
    """Rows on which it is worse."""
    ties: int
    """Rows on which both are equal."""

    def __str__(self) -> str:
        return f"{self.difference:+.3f}{_interval(self.low, self.high, sign='+')} (n={self.n})"


@dataclass(frozen=True, slots=True)
class ClaimedGain:
    """The gain that a claim rests on, with a 95 % interval that keeps its coverage with few rows."""

    estimate: float
    """The estimated gain; positive if the candidate is better. Two added rows pull it a little towards 0."""
    low: float
    """The lower bound of the interval."""
    high: float
    """The upper bound of the interval."""
    rows: int
    """The number of held-out rows on which both have a score."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the held-out rows show about the result of a run."""

    verdict: str
    """`better`, `no_evidence`, or `unchanged` if the search found nothing better than the initial candidate."""
    candidate_id: str
    """The candidate that the search preferred."""
    gain: ClaimedGain | None
    """Its gain over the initial candidate on held-out rows; `None` if there is nothing to compare."""
    p_value: float | None
    """The probability of a difference at least this large if both were equal, by an exact two-sided test."""
    smallest_gain: float | None
    """The smallest gain that this many rows show in four of five runs."""
    sentence: str
    """The result in words."""

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of the initial and the best candidate on train and held-out rows; `None` if not measured."""

    seed_train: Score | None
    """The initial candidate on train rows."""
    best_train: Score | None
    """The best candidate on train rows."""
    seed_heldout: Score | None
    """The initial candidate on held-out rows."""
    best_heldout: Score | None
    """The best candidate on held-out rows."""
    train_gain: Gain | None
    """The gain over the initial candidate on train rows. The search selects on these rows, so the gain is biased
    upwards."""
    heldout_gain: Gain | None
    """The gain over the initial candidate on held-out rows, on which nothing was selected."""

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
    """Parse a score of the core."""
    return None if known is None else Score(**{name: known[name] for name in Score.__slots__})


def gain_of(known: Mapping[str, Any] | None) -> Gain | None:
    """Parse a gain of the core."""
    return None if known is None else Gain(**{name: known[name] for name in Gain.__slots__})


def claim_of(known: Mapping[str, Any] | None) -> Claim | None:
    """Parse a claim of the core."""
    if known is None:
        return None
    gain = known.get("gain")
    fields: dict[str, Any] = {name: known.get(name) for name in Claim.__slots__}
    return Claim(**{**fields, "gain": None if gain is None else ClaimedGain(**gain)})


def _interval(low: float | None, high: float | None, sign: str = "") -> str:
    return "" if low is None or high is None else f" [{low:{sign}.3f}, {high:{sign}.3f}]"
