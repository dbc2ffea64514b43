"""Writes the section "A real language model" of the benchmark page from the JSON lines of `llm.py`.

Usage: python llm_report.py --results DIRECTORY --page docs/benchmarks.md

The section is what stands between its two marks in the page. Every random draw has a seed of its own, so that the same
lines make the same page.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from report import NAMES, OTHERS, OURS, RESAMPLES, rewrite, table

BEGIN = "<!-- The section below is written by `make bench-llm`. -->"
END = "<!-- End of the section that `make bench-llm` writes. -->"

BUDGET = 1000
MARKS = (200, 500, 1000)
# With fewer seeds, the page does not show a mark.
FEWEST_SEEDS = 10
TITLES = {
    "intents": "Intents: share of right answers",
    "words": "Words: mean share of the right answer",
}
INTRODUCTION = """\
Written on {day} by `make bench-llm`, on a machine with {cores} cores, with the random seeds {first} to {last}. `sprint`
and `reference` are the two searches of this project, gepa is version {version} from PyPI. All of them have a budget of
{budget:,} rollouts and meet the same rows, proposer and seeds. gepa and `sprint` have minibatches of 3 rows, the default of
gepa; `reference` has 8 rows, its default for this budget.

The policy is SmolLM2 with 135 million parameters, as in the cookbook Banking77: the model continues the text, the row and
`Intent:`, and its next token gives each answer a share. The same text and row always get the same score.

| task | rows | score of a row |
| --- | --- | --- |
| `intents` | short queries of six intents from the Banking77 sample of the cookbook: {intents} | 1 if the right intent has the highest share, else 0 |
| `words` | plants and animals of eight kinds (`bench/search/words.csv`): {words} | the share of the right kind, from 0 to 1 |

The proposer is scripted. It sees the rows of the minibatch with their scores, and its proposals depend on the text, these
rows and the number of the turn. Half of them teach: a row with a score below 0.5 becomes an example, or takes the place of
one; without such a row, an example is dropped. The other half drops an example, moves one to the end, sets a sentence that
says nothing about the task, or shows a row with a wrong answer. A seed decides about the two splits, the minibatches and the proposals.

At each mark of rollouts, the score is that of the candidate that the optimizer declares the best at that moment: its mean
over the held-out rows, which do not count as rollouts and decide nothing. Intervals are 95 % bootstrap intervals over the
seeds; the differences are paired by seed. With so few seeds such intervals are somewhat too narrow, and they are not
corrected for the number of comparisons.
"""  # noqa: E501 (rows of a table)


@dataclass
class Results:
    """The held-out scores by task, engine, mark and seed."""

    scores: dict[tuple[str, str, int], dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    initial: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    version: str = ""

    @property
    def marks(self) -> list[int]:
        """The marks that all engines got to on every task, with enough seeds for an interval."""
        return [mark for mark in MARKS if all(len(self.seeds(task, mark)) >= FEWEST_SEEDS for task in self.tasks)]

    @property
    def tasks(self) -> list[str]:
        """The tasks in the order of the page."""
        return [task for task in TITLES if task in self.rows]

    def seeds(self, task: str, mark: int) -> list[int]:
        """Return the seeds with which all engines got to a mark of a task."""
        return sorted(set.intersection(*(set(self.scores[task, engine, mark]) for engine in (OURS, *OTHERS))))

    def values(self, task: str, engine: str, mark: int) -> list[float]:
        """Return the scores of an engine at a mark, by the seeds that all engines have."""
        return [self.scores[task, engine, mark][seed] for seed in self.seeds(task, mark)]


def read(directory: Path) -> Results:
    """Read the lines of a directory."""
    results = Results()
    for text in (directory / "runs.jsonl").read_text(encoding="utf-8").splitlines():
        line: dict[str, Any] = json.loads(text)
        results.scores[line["world"], line["search"], line["mark"]][line["seed"]] = line["score"]
        results.initial[line["world"]][line["seed"]] = line["initial_score"]
        results.rows[line["world"]] = (line["rows"], line["heldout"])
        results.version = line.get("version", results.version)
    return results


@dataclass
class Mean:
    """A mean with its interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], label: str) -> Mean:
        """Return the mean of values with the bootstrap interval of their mean."""
        draws = random.Random(label)  # noqa: S311
        means = sorted(statistics.fmean(draws.choices(values, k=len(values))) for _ in range(RESAMPLES))
        low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]
        return cls(statistics.fmean(values), low, high)


def difference(results: Results, task: str, engine: str, mark: int) -> Mean:
    """Return the score of `sprint` minus that of another engine, paired by seed."""
    pairs = zip(results.values(task, OURS, mark), results.values(task, engine, mark), strict=True)
    return Mean.of([ours - other for ours, other in pairs], f"difference {task} {engine} {mark}")


def score_table(results: Results, task: str) -> Iterator[str]:
    """Write the mean held-out scores at the marks."""
    initial = Mean.of(list(results.initial[task].values()), f"initial {task}")
    yield f"The initial text scores {initial.mean:.3f} [{initial.low:.3f}, {initial.high:.3f}]."
    yield ""
    rows = []
    for engine in (OURS, *OTHERS):
        found = [Mean.of(results.values(task, engine, mark), f"{task} {engine} {mark}") for mark in results.marks]
        rows.append([NAMES[engine], *(f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in found)])
    heads = [f"{mark:,} rollouts ({len(results.seeds(task, mark))} seeds)" for mark in results.marks]
    yield from table(["engine", *heads], rows)


def difference_table(results: Results, task: str) -> Iterator[str]:
    """Write the differences between `sprint` and the others at the marks."""
    rows = []
    for engine in OTHERS:
        found = [difference(results, task, engine, mark) for mark in results.marks]
        rows.append([NAMES[engine], *(f"{one.mean:+.3f} [{one.low:+.3f}, {one.high:+.3f}]" for one in found)])
    yield from table(["sprint minus", *(f"{mark:,} rollouts" for mark in results.marks)], rows)


def summary(results: Results) -> Iterator[str]:
    """Write what the differences show, mark by mark."""
    for mark in results.marks:
        ahead, behind, level = [], [], 0
        for task in results.tasks:
            for engine in OTHERS:
                found = difference(results, task, engine, mark)
                name = f"{NAMES[engine]} ({task})"
                if found.low > 0:
                    ahead.append(name)
                elif found.high < 0:
                    behind.append(name)
                else:
                    level += 1
        said = [f"ahead of {', '.join(ahead)}"] if ahead else []
        said += [f"behind {', '.join(behind)}"] if behind else []
        said += [f"level with the other {level}" if said else f"level with all {level}"] if level else []
        yield f"* At {mark:,} rollouts `sprint` is {'; '.join(said)}."
    yield ""
    yield "Ahead and behind mean that the interval of the difference does not contain 0, level that it does."
    yield ""


def section(results: Results, day: str) -> Iterator[str]:
    """Write the section."""
    seeds = sorted({seed for known in results.initial.values() for seed in known})
    yield from ("## A real language model", "")
    yield INTRODUCTION.format(
        day=day,
        cores=os.cpu_count(),
        first=seeds[0],
        last=seeds[-1],
        budget=BUDGET,
        version=results.version,
        **{task: f"{train} train and {heldout} held-out rows" for task, (train, heldout) in results.rows.items()},
    )
    missing = [f"{mark:,}" for mark in MARKS if mark not in results.marks]
    if missing:
        yield f"**Incomplete**: {' and '.join(missing)} rollouts are not measured with {FEWEST_SEEDS} seeds yet."
        yield ""
    yield from summary(results)
    for task in results.tasks:
        yield from (f"### {TITLES[task]}", "")
        yield from score_table(results, task)
        yield from difference_table(results, task)


def main() -> None:
    """Read the results and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, required=True, help="directory of the JSON lines")
    parser.add_argument("--page", type=Path, required=True, help="page with the two marks")
    parser.add_argument("--date", default=date.today().isoformat(), help="date of the measurement")
    options = parser.parse_args()
    results = read(options.results)
    if not results.marks:
        sys.exit(f"{options.results}: no mark has {FEWEST_SEEDS} seeds of every engine and task")
    rewrite(options.page, BEGIN, END, section(results, options.date))


if __name__ == "__main__":
    main()
