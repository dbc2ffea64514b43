"""Writes the section "Real scores" of the benchmark page: the choice among finished prompts, replayed.

Usage: python scores.py --search PROGRAM --scores prompt_scores.csv.gz --page docs/benchmarks.md

The section is what stands between its two marks in the page, or the end of the page if the marks are missing. Every
random draw has a seed of its own, so that the same scores make the same section.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

BEGIN = "<!-- The section below is written by `make bench-scores`. -->"
END = "<!-- End of the section that `make bench-scores` writes. -->"

ONE_BLOCK, FULL = "one block", "full evaluation"
ROWS, BLOCKS = "rows: ", "blocks: "
RACE = "race "
NAMES = {
    ONE_BLOCK: "all prompts on one block",
    FULL: "all prompts on all five blocks",
    "chain of checks": "chain of checks, adopted from 0.975",
}
MIN_GAIN, MAX_ROLLOUTS = 0.95, 0.60
RESAMPLES = 4000


@dataclass(frozen=True)
class Figures:
    """What a policy gains and pays in one run, on average over the draws."""

    gain: float
    rollouts: float
    bias: float


@dataclass(frozen=True)
class Run:
    """One run: the figures of every policy; the variance of a difference on a row, as dealt and from block to block."""

    policies: dict[str, Figures]
    variances: tuple[float, float]

    def __getitem__(self, policy: str) -> Figures:
        return self.policies[policy]


def replay(search: Path, scores: Path) -> list[Run]:
    """Replay the table and return the figures of every run by policy, in the order of the names of the runs."""
    stored = scores.read_bytes()
    rows = gzip.decompress(stored) if scores.suffix == ".gz" else stored
    done = subprocess.run([search, "replay", "-"], input=rows, stdout=subprocess.PIPE, check=True)  # noqa: S603
    lines = (json.loads(line) for line in done.stdout.splitlines())
    return [
        Run({name: Figures(**found) for name, found in line["policies"].items()}, (line["dealt"], line["paired"]))
        for line in lines
    ]


def gain_share(runs: Sequence[Run], policy: str) -> float:
    """Return the mean gain of a policy as a share of that of the full evaluation."""
    return sum(run[policy].gain for run in runs) / sum(run[FULL].gain for run in runs)


def rollout_share(runs: Sequence[Run], policy: str) -> float:
    """Return the rollouts of a policy as a share of those of the full evaluation."""
    return sum(run[policy].rollouts for run in runs) / sum(run[FULL].rollouts for run in runs)


def interval(runs: Sequence[Run], measure: Callable[[Sequence[Run]], float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval over the runs."""
    draws = random.Random("scores")  # noqa: S311
    values = sorted(measure(draws.choices(runs, k=len(runs))) for _ in range(RESAMPLES))
    return values[int(0.025 * RESAMPLES)], values[int(0.975 * RESAMPLES) - 1]


def chosen_race(runs: Sequence[Run], pairs: str) -> str:
    """Return the race with the fewest rollouts among those with the required gain; else that with the highest gain."""
    races = [policy for policy in runs[0].policies if policy.startswith(pairs) and RACE in policy]
    enough = [policy for policy in races if gain_share(runs, policy) >= MIN_GAIN]
    if enough:
        return min(enough, key=lambda policy: rollout_share(runs, policy))
    return max(races, key=lambda policy: gain_share(runs, policy))


def shown(policy: str, runs: Sequence[Run], measure: Callable[[Sequence[Run], str], float]) -> str:
    """Write a share with its interval."""
    low, high = interval(runs, lambda drawn: measure(drawn, policy))
    return f"{measure(runs, policy):.1%} [{low:.1%}, {high:.1%}]"


def label(policy: str) -> str:
    """Write the name of a policy."""
    pairs, colon, name = policy.rpartition(": ")
    if name.startswith(RACE):
        name = f"race, dropped below {name.removeprefix(RACE)}"
    return f"{NAMES.get(name, name)} ({pairs})" if colon else NAMES.get(name, name)


def table(choosing: Sequence[Run], published: Sequence[Run], chosen: Sequence[str]) -> Iterator[str]:
    """Write the figures of all policies."""
    yield "| policy | choosing half: gain | rollouts | published half: gain | share | rollouts | share | seen - true |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    by_kind = [[name for name in choosing[0].policies if name.startswith(kind)] for kind in (ROWS, BLOCKS)]
    for policy in (ONE_BLOCK, FULL, *by_kind[0], *by_kind[1]):
        early, late = ([run[policy] for run in half] for half in (choosing, published))
        cells = [
            f"**{label(policy)}**" if policy in chosen else label(policy),
            f"{statistics.fmean(found.gain for found in early):+.4f}",
            f"{statistics.fmean(found.rollouts for found in early):,.0f}",
            f"{statistics.fmean(found.gain for found in late):+.4f}",
            shown(policy, published, gain_share),
            f"{statistics.fmean(found.rollouts for found in late):,.0f}",
            shown(policy, published, rollout_share),
            f"{statistics.fmean(found.bias for found in late):+.3f}",
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""


INTRODUCTION = """\
Written on {day} by `make bench-scores`: the choice among finished prompts, replayed on the scores that three language
models had with real prompts in five tasks. The scores are derived from the result files of
[capo](https://github.com/finitearth/capo) (Zehle et al., 2504.16005, Apache License 2.0). They are not part of this
repository: `make bench-scores SCORES=...` names the table. No model takes part, and nothing is said about proposals.

A line of the table has the right answers of one prompt in ten blocks of 30 rows; all prompts of a run met the same
rows. Each of {runs} runs is replayed 20 times: 12 of its prompts that have all ten blocks, five random blocks to choose
by, and the other five as the truth. *Gain* is the true score of the choice minus that of the average prompt. *Share* is
relative to the evaluation of all prompts on all five blocks. *Seen - true* is how much too high the choice looked.

A *race* measures all prompts block by block. After each block it drops every prompt whose probability of being better
than the leader is below the threshold (`bench/search/race.rs`). The *chain of checks* compares one prompt after the
other with the last adopted one, by the check of `sprint`. Both use its posterior with the same constants.

The table does not say which rows of a block were right, so a variance has to be assumed. With *rows*, the right answers
of each prompt are dealt out to the rows of a block at random, as if the answers of two prompts to the same row had
nothing in common. This is too careful: the variance of a difference is then {dealt:.2f} per row on average, while from
block to block it is {paired:.2f}. With *blocks*, the difference in a block is one pair: that keeps what two prompts
have in common, but the variance is estimated from one to five pairs.

Every second run, by name, serves to choose the threshold: the fewest rollouts with at least 95 % of the gain. The other
runs are the published figures, with 95 % bootstrap intervals over the runs. In bold: the chosen threshold for each kind
of pairs. The rule for the choice was written after both halves had been looked at, so the second half is no blind test.
"""


def section(runs: Sequence[Run], day: str) -> Iterator[str]:
    """Write the section."""
    choosing, published = runs[0::2], runs[1::2]
    chosen = [chosen_race(choosing, pairs) for pairs in (ROWS, BLOCKS)]
    dealt, paired = (statistics.fmean(values) for values in zip(*(run.variances for run in runs), strict=True))
    yield from ("## Real scores", "")
    yield INTRODUCTION.format(day=day, runs=len(runs), dealt=dealt, paired=paired)
    yield "| requirement: at least 95 % of the gain for at most 60 % of the rollouts | gain | rollouts | holds |"
    yield "| --- | --- | --- | --- |"
    for policy in chosen:
        holds = gain_share(published, policy) >= MIN_GAIN and rollout_share(published, policy) <= MAX_ROLLOUTS
        shares = [shown(policy, published, measure) for measure in (gain_share, rollout_share)]
        yield f"| {label(policy)} | {shares[0]} | {shares[1]} | {'yes' if holds else '**no**'} |"
    yield ""
    yield from table(choosing, published, chosen)


def main() -> None:
    """Replay the scores and write the section."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--search", type=Path, required=True, help="the benchmark program")
    parser.add_argument("--scores", type=Path, required=True, help="table of scores, may be compressed")
    parser.add_argument("--page", type=Path, required=True, help="page with the section")
    parser.add_argument("--date", default=date.today().isoformat(), help="date of the replay")
    options = parser.parse_args()
    if not options.scores.is_file():
        sys.exit(f"{options.scores} is missing: name the table of scores with SCORES=.")
    page = options.page.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    after = rest.partition(END)[2] if begin else "\n"
    before = before if begin else before.rstrip() + "\n\n"
    text = "\n".join(section(replay(options.search, options.scores), options.date)).rstrip()
    options.page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
