"""Significance of a gain: two tests over runs with different random seeds, and one over the held-out rows of a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True)
class SeedStatistics:
    """The mean gain of several runs with its 95 % interval, and p-values under the hypothesis of no gain.

    `p_t` is the two-sided p-value of the paired t-test; it is unknown if all gains are equal. `p_permutation` is the
    one-sided p-value of the exact sign-flip permutation test: with five seeds it is at least 1/32.
    """

    mean: float
    low: float | None
    high: float | None
    p_t: float | None
    p_permutation: float


def seed_statistics(gains: Sequence[float]) -> SeedStatistics:
    """Test the gains of runs with different random seeds against no gain."""
    mean, count = fmean(gains), len(gains)
    error = stdev(gains) / math.sqrt(count) if count > 1 else 0.0
    permutation = permutation_test(gains)
    if error <= 1e-12:
        return SeedStatistics(mean, None, None, None, permutation)
    reach = t_quantile(CONFIDENCE, count - 1) * error
    return SeedStatistics(mean, mean - reach, mean + reach, t_test(mean / error, count - 1), permutation)


def permutation_test(gains: Sequence[float]) -> float:
    """Return the share of all sign assignments whose sum is at least the observed one."""
    observed = sum(gains)
    sums = [sum(sign * abs(gain) for sign, gain in zip(signs, gains, strict=True)) for signs in _signs(len(gains))]
    return sum(value >= observed - 1e-12 for value in sums) / len(sums)


def sign_test(wins: int, losses: int) -> float:
    """Return the exact two-sided p-value of rows won and lost, if a change were as likely to harm as to help."""
    count = wins + losses
    tail = sum(math.comb(count, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2.0 * tail / 2.0**count)


def t_test(t: float, freedom: int) -> float:
    """Return the two-sided p-value of a t statistic."""
    return max(0.0, 1.0 - _t_mass(abs(t), freedom))


def t_quantile(mass: float, freedom: int) -> float:
    """Return the distance from zero that covers a share of Student's distribution."""
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_mass(middle, freedom) < mass else (low, middle)
    return high


def _t_mass(reach: float, freedom: int) -> float:
    """Return the share of Student's distribution between -reach and reach, by Simpson's rule over its angle."""
    # With t = sqrt(freedom) * tan(angle), the density is a power of a cosine and the range is finite.
    end, steps = math.atan(reach / math.sqrt(freedom)), 2000
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    width = end / steps
    weights = (1 if step in (0, steps) else 4 if step % 2 else 2 for step in range(steps + 1))
    total = sum(weight * math.cos(step * width) ** (freedom - 1) for step, weight in enumerate(weights))
    return 2.0 * scale * total * width / 3.0


def _signs(count: int) -> itertools.product[tuple[int, ...]]:
    return itertools.product((1, -1), repeat=count)
