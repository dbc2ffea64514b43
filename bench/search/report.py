"""Writes the section "Search" of the benchmark page and its charts from the JSON lines of this project and of gepa.

Usage: python report.py --results DIRECTORY --page docs/benchmarks.md --charts docs/assets

The section is what stands between the two marks in the page; the rest of the page stays as it is. Every random draw
has a seed of its own, so that the same lines make the same page.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

BEGIN = "<!-- The section below is written by `make bench-search`. -->"
END = "<!-- End of the section that `make bench-search` writes. -->"

OURS = "sprint"
REFERENCE = "reference"
DEFAULT = "gepa pareto"
CURRENT_BEST = "gepa current_best"
WIDE = ("gepa pareto x8", "gepa current_best x8")
NAMES = {
    OURS: "sprint",
    REFERENCE: "reference",
    DEFAULT: "gepa default",
    CURRENT_BEST: "gepa current_best",
    WIDE[0]: "gepa default, 8 proposals",
    WIDE[1]: "gepa current_best, 8 proposals",
}
OTHERS = (DEFAULT, CURRENT_BEST, REFERENCE)
BUDGET = 3000
MARKS = (200, 500, 1000, 2000, 3000)
NOISES = (0.0, 0.05, 0.1, 0.2)
# True quality at which a run is at its target, for each world and noise.
TARGETS = {
    "rule": dict(zip(NOISES, (0.6, 0.5, 0.4, 0.3), strict=True)),
    "graded": dict(zip(NOISES, (0.8, 0.7, 0.6, 0.5), strict=True)),
    "conflict": dict(zip(NOISES, (0.6, 0.55, 0.5, 0.45), strict=True)),
    "irt": dict(zip(NOISES, (0.5, 0.5, 0.5, 0.5), strict=True)),
    "brittle": dict(zip(NOISES, (0.6, 0.5, 0.4, 0.3), strict=True)),
}
WORLDS = (*TARGETS, "null")
RESAMPLES = 2000
TINY = 1e-9

Point = tuple[float, float, float]


@dataclass(frozen=True, order=True)
class Cell:
    """One kind of task."""

    world: str
    learns: float
    rows: int
    noise: float
    budget: int

    @property
    def target(self) -> float:
        """The true quality that a run has to reach."""
        return TARGETS[self.world][self.noise]

    @property
    def label(self) -> str:
        """The name of the cell within its world."""
        learns = "" if self.learns == 0.5 else f" (learns {self.learns:g})"
        return f"{self.rows} rows, noise {self.noise:g}{learns}"


@dataclass
class Run:
    """One run: how good its best candidate was, after how many rollouts and seconds."""

    seed: int
    budget: int
    best: list[Point]
    end: dict[str, Any]

    def reached(self, target: float) -> Point | None:
        """Return the first point within the budget at which the best candidate is truly at the target."""
        return next((p for p in self.best if p[1] >= target - TINY and p[0] <= self.budget), None)

    def rollouts(self, target: float) -> float:
        """Return the rollouts to the target, or the budget."""
        point = self.reached(target)
        return point[0] if point else self.budget

    def seconds(self, target: float) -> float:
        """Return the simulated seconds to the target, or infinity."""
        point = self.reached(target)
        return point[2] if point else math.inf

    def quality(self, place: int, limit: float) -> float:
        """Return the true quality of the best candidate at so many rollouts (place 0) or seconds (place 2)."""
        return next((p[1] for p in reversed(self.best) if p[place] <= limit), self.best[0][1])


@dataclass
class Results:
    """All runs, by cell, engine and window."""

    runs: dict[tuple[Cell, str, int], dict[int, Run]] = field(default_factory=lambda: defaultdict(dict))
    honesty: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    gepa_version: str = ""

    def of(self, cell: Cell, engine: str = OURS, window: int = 1) -> dict[int, Run]:
        """Return the runs of an engine in a cell by their seeds."""
        return self.runs.get((cell, engine, window), {})

    def cells(self, *worlds: str, budget: int = BUDGET) -> list[Cell]:
        """Return the cells of worlds in which this project ran."""
        found = {cell for cell, engine, _ in self.runs if engine == OURS and cell.budget == budget}
        chosen = (cell for cell in found if cell.world in worlds)
        return sorted(chosen, key=lambda cell: (worlds.index(cell.world), cell.learns != 0.5, cell))


def read(directory: Path) -> Results:
    """Read all lines of a directory."""
    results = Results()
    for path in sorted(directory.glob("*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            if line.get("heldout", 1) > 1:
                results.honesty[line["world"]].append(line)
                continue
            cell = Cell(line["world"], line["learns"], line["rows"], float(line["noise"]), line["budget"])
            best = [(point[0], point[1], point[2]) for point in line["best"]]
            runs = results.runs[cell, line["search"], line["window"]]
            if line["seed"] in runs:
                raise SystemExit(f"{path}: seed {line['seed']} of {cell} by {line['search']} is there twice")
            runs[line["seed"]] = Run(line["seed"], line["budget"], best, line["end"])
            results.gepa_version = line.get("version", results.gepa_version)
    return results


# Figures


@dataclass
class Ratio:
    """The median of ratios by seed, with its interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"**{times(self.median)}** [{factor(self.low)}, {factor(self.high)}]"


def factor(value: float) -> str:
    """Write a ratio."""
    digits = 0 if value >= 99.5 else 1 if value >= 5 else 2
    return "never" if math.isinf(value) else f"{value:.{digits}f}"


def times(value: float) -> str:
    """Write a ratio as a factor."""
    return factor(value) + ("" if math.isinf(value) else "x")


def middle(values: Iterable[float]) -> float:
    """Return the median. Unlike in `statistics`, values may be infinite."""
    ordered = sorted(values)
    below, above = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return below if below == above else (below + above) / 2


def ratio(ours: dict[int, Run], others: dict[int, Run], measure: Callable[[Run], float], label: str) -> Ratio | None:
    """Return the ratio of the others to ours over the seeds that both have, with a paired bootstrap interval."""
    seeds = sorted(ours.keys() & others.keys())
    if not seeds:
        return None
    pairs = [(measure(ours[seed]), measure(others[seed])) for seed in seeds]
    ratios = [1.0 if one == other else other / one for one, other in pairs]
    draws = random.Random(label)  # noqa: S311
    medians = sorted(middle(draws.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return Ratio(middle(ratios), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1])


def to_target(
    results: Results, cell: Cell, engine: str, window: int = 1, of: tuple[str, int] = (OURS, 1)
) -> Ratio | None:
    """Return how many times the rollouts of `of` an engine needs to the target."""
    label = f"{cell} {engine} {window} {of}"
    return ratio(results.of(cell, *of), results.of(cell, engine, window), lambda run: run.rollouts(cell.target), label)


def clock(results: Results, cell: Cell, engine: str, window: int, of: tuple[str, int]) -> Ratio | None:
    """Return how many times the seconds of `of` an engine needs to the target."""
    label = f"seconds {cell} {engine} {window} {of}"
    return ratio(results.of(cell, *of), results.of(cell, engine, window), lambda run: run.seconds(cell.target), label)


def mean_quality(runs: dict[int, Run], limit: float, place: int = 0) -> float:
    """Return the mean true quality at so many rollouts or seconds."""
    return statistics.fmean(run.quality(place, limit) for run in runs.values())


# Tables


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return [*("| " + " | ".join(line) + " |" for line in lines), ""]


def median_rollouts(cell: Cell, runs: dict[int, Run]) -> str:
    """Write the median rollouts to the target, and how many runs never got there."""
    never = sum(run.reached(cell.target) is None for run in runs.values())
    return f"{middle(run.rollouts(cell.target) for run in runs.values()):.0f}" + (f" ({never} never)" if never else "")


def spread(cell: Cell, runs: dict[int, Run]) -> str:
    """Write the quartiles of the rollouts to the target."""
    ordered = sorted(run.rollouts(cell.target) for run in runs.values())
    low, _, high = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
    return f"{low:.0f} to {high:.0f}"


def target_tables(results: Results) -> Iterator[str]:
    """Write the rollouts to the target, one table for each world."""
    for world in TARGETS:
        cells = results.cells(world)
        if not cells:
            continue
        yield from (f"#### {world}", "")
        rows = []
        for cell in cells:
            ours = results.of(cell)
            row = [f"{cell.label} ({cell.target:g})", median_rollouts(cell, ours), spread(cell, ours)]
            for engine in OTHERS:
                others = results.of(cell, engine)
                found = to_target(results, cell, engine)
                row.append(f"{median_rollouts(cell, others)}: {found}" if found else "")
            rows.append(row)
        yield from table(["cell (target)", "sprint", "quartiles", *(NAMES[engine] for engine in OTHERS)], rows)


def quality_table(results: Results) -> Iterator[str]:
    """Write the mean true quality of the best candidate at the marks."""
    rows = []
    for cell in results.cells(*WORLDS):
        of = [results.of(cell, engine) for engine in (OURS, *OTHERS)]
        written = [" ".join(f"{mean_quality(runs, mark):.2f}" for mark in MARKS) if runs else "" for runs in of]
        rows.append([f"{cell.world}, {cell.label}", *written])
    yield from table(["cell", *(NAMES[engine] for engine in (OURS, *OTHERS))], rows)


def behind(results: Results) -> Iterator[str]:
    """Write the cells with a median ratio below 1, and those with a lower quality at the end."""
    slower, lower = [], []
    for cell in results.cells(*WORLDS):
        for engine in OTHERS:
            if not results.of(cell, engine):
                continue
            found = to_target(results, cell, engine) if cell.world in TARGETS else None
            if found and found.median < 1 - TINY:
                slower.append(f"| {cell.world}, {cell.label} | {NAMES[engine]} | {found} |")
            ours, others = (mean_quality(results.of(cell, name), BUDGET) for name in (OURS, engine))
            if ours < others - 0.01:
                lower.append(f"| {cell.world}, {cell.label} | {NAMES[engine]} | {ours:.2f} | {others:.2f} |")
    if slower:
        yield from ("Cells in which `sprint` needs more rollouts to the target:", "")
        yield from ("| cell | against | ratio |", "|---|---|---|", *slower, "")
    else:
        yield from ("There is no cell in which `sprint` needs more rollouts to the target.", "")
    if lower:
        yield from (f"Cells in which the mean quality at {BUDGET:,} rollouts is lower by more than 0.01:", "")
        yield from ("| cell | against | sprint | other |", "|---|---|---|---|", *lower, "")


def window_table(results: Results) -> Iterator[str]:
    """Write the rollouts to the target with wider windows."""
    rows = []
    for cell in results.cells(*TARGETS):
        if not results.of(cell, OURS, 8):
            continue
        row = [f"{cell.world}, {cell.label}", median_rollouts(cell, results.of(cell))]
        for window in (8, 32):
            found = to_target(results, cell, OURS, window)
            row.append(f"{median_rollouts(cell, results.of(cell, OURS, window))}: {found}")
        against = to_target(results, cell, CURRENT_BEST, 1, (OURS, 32))
        rows.append([*row, str(against) if against else ""])
    yield from table(["cell", "window 1", "window 8", "window 32", "gepa current_best to window 32"], rows)


def median_seconds(cell: Cell, runs: dict[int, Run]) -> str:
    """Write the median seconds to the target."""
    if not runs:
        return ""
    found = middle(run.seconds(cell.target) for run in runs.values())
    return "never" if math.isinf(found) else f"{found:.0f} s"


def clock_cells(results: Results) -> list[Cell]:
    """Return the cells in which gepa also ran with several proposals at once."""
    return [cell for cell in results.cells(*TARGETS) if results.of(cell, WIDE[0])]


def clock_table(results: Results) -> Iterator[str]:
    """Write the simulated time to the target."""
    engines = [(OURS, 1), (OURS, 8), (OURS, 32), (DEFAULT, 1), (CURRENT_BEST, 1), (WIDE[0], 1), (WIDE[1], 1)]
    head = [NAMES[engine] + (f", window {window}" if engine == OURS else "") for engine, window in engines]
    rows = [
        [f"{cell.world}, {cell.label}", *(median_seconds(cell, results.of(cell, *engine)) for engine in engines)]
        for cell in clock_cells(results)
    ]
    yield from table(["cell", *head], rows)


def honesty_table(results: Results) -> Iterator[str]:
    """Write what the held-out rows say and what is true."""
    rows = []
    for world, lines in results.honesty.items():
        found = honesty(lines)
        rows.append(
            [
                f"{world} ({lines[0]['rows']} rows, noise {lines[0]['noise']:g}, {lines[0]['heldout']} held-out rows, "
                f"{lines[0]['budget']} rollouts)",
                f"{len(lines):,}",
                f"{found['changed']:.1%}",
                f"{found['claims']:.1%}",
                f"{found['above']:.1%}",
                f"{found['bias']:+.4f} ± {found['bias_error']:.4f}",
                f"{found['bias_returned']:+.4f} ± {found['bias_returned_error']:.4f}",
                f"{found['score_coverage']:.1%}",
                f"{found['gain_coverage']:.1%} of {found['gains']:,}" if found["gains"] else "",
            ]
        )
    head = ["proposer", "runs", "prefer another candidate", "claims", "intervals above 0"]
    head += ["reported minus true, preferred", "returned", "coverage of the score", "coverage of the gain"]
    yield from table(head, rows)


def honesty(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of many runs of one world. The runs return what the search prefers, and record their claim."""
    ends = [line["end"] for line in lines]
    claims = [end["claim"]["verdict"] == "better" for end in ends]
    # Without a claim, a run with the default settings returns the initial candidate.
    returned = [
        end["best"]["mean"] - end["expected"] if claimed else end["seed"]["mean"] - end["expected_of_initial"]
        for end, claimed in zip(ends, claims, strict=True)
    ]
    preferred = [end["best"]["mean"] - end["expected"] for end in ends]
    covered = [end["best"]["low"] <= end["expected"] <= end["best"]["high"] for end in ends]
    gains = [
        (end["claim"]["gain"], end["expected"] - end["expected_of_initial"]) for end in ends if end["claim"].get("gain")
    ]
    held = [gain["low"] - TINY <= truth <= gain["high"] + TINY for gain, truth in gains]

    def error(differences: list[float]) -> float:
        return 1.96 * statistics.stdev(differences) / math.sqrt(len(differences))

    return {
        "changed": statistics.fmean(not end["is_initial"] for end in ends),
        "claims": statistics.fmean(claims),
        "above": sum(gain["low"] > 0 for gain, _ in gains) / len(ends),
        "bias": statistics.fmean(preferred),
        "bias_error": error(preferred),
        "bias_returned": statistics.fmean(returned),
        "bias_returned_error": error(returned),
        "score_coverage": statistics.fmean(covered),
        "gains": len(gains),
        "gain_coverage": statistics.fmean(held) if held else math.nan,
    }


def selection_bias(results: Results) -> Iterator[str]:
    """Write what gepa reports where nothing can be gained."""
    rows = []
    for cell in results.cells("null"):
        row = [cell.label]
        for engine in (DEFAULT, CURRENT_BEST):
            runs = results.of(cell, engine).values()

            def expected(quality: float, noise: float = cell.noise) -> float:
                return quality + noise * (1 - 2 * quality)

            found = [run.end["reported"] - expected(run.end["quality"]) for run in runs]
            row.append(f"{statistics.fmean(found):+.3f}" if found else "")
        rows.append(row)
    yield from table(["null", NAMES[DEFAULT], NAMES[CURRENT_BEST]], rows)


# Bars


@dataclass
class Bar:
    """One requirement: what it says, what was measured, and whether it holds."""

    text: str
    measured: str
    holds: bool | None


def at_least(results: Results, text: str, cells: list[Cell], engine: str, bar: float) -> Bar:
    """Check that the median ratio of rollouts is at least so high in each of the cells."""
    found = [(to_target(results, cell, engine), cell) for cell in cells]
    ratios = [(value.median, cell) for value, cell in found if value]
    text = f"{text}, {NAMES[engine]}: at least {bar:g}"
    if not ratios:
        return Bar(text, "", None)
    low, high = min(ratios), max(ratios)
    below = sum(value < bar - TINY for value, _ in ratios)
    measured = times(low[0]) if len(ratios) == 1 else f"{factor(low[0])} to {times(high[0])} in {len(ratios)} cells"
    if below:
        measured += f"; {below} below, lowest: {low[1].world}, {low[1].label}"
    return Bar(text, measured, not below)


def comparison_bars(results: Results) -> Iterator[Bar]:
    """Check the comparison with gepa."""

    def cells(world: str, rows: int, *noises: float) -> list[Cell]:
        return [cell for cell in results.cells(world) if cell.rows == rows and cell.noise in noises]

    every = results.cells(*TARGETS)
    few = [cell for cell in every if cell.rows == 20 and cell.noise == 0]
    noisy = NOISES[1:]
    for engine in (DEFAULT, CURRENT_BEST):
        yield at_least(results, "every cell", every, engine, 1.0)
        yield at_least(results, "20 rows, no noise", few, engine, 1.1)
    for text, chosen, of_default, of_best in (
        ("rule, 50 rows, no noise", cells("rule", 50, 0.0), 3.5, 2.5),
        ("rule, 50 rows, noise", cells("rule", 50, *noisy), 4, 2.5),
        ("rule, 200 rows, no noise", cells("rule", 200, 0.0), 5, 4),
        ("rule, 200 rows, noise", cells("rule", 200, *noisy), 5, 4),
    ):
        yield at_least(results, text, chosen, DEFAULT, of_default)
        yield at_least(results, text, chosen, CURRENT_BEST, of_best)
    for text, chosen, bar in (
        ("graded, 50 rows, no noise", cells("graded", 50, 0.0), 2.5),
        ("graded, 200 rows, no noise", cells("graded", 200, 0.0), 4),
        ("conflict, 50 rows, no noise", cells("conflict", 50, 0.0), 2),
        ("conflict, 50 rows, noise 0.1", cells("conflict", 50, 0.1), 2.5),
    ):
        yield at_least(results, text, chosen, CURRENT_BEST, bar)


def quality_bars(results: Results) -> Iterator[Bar]:
    """Check the quality at given budgets."""
    for cell in results.cells("rule", budget=500):
        ours, *gepas = (mean_quality(results.of(cell, engine), 500) for engine in (OURS, DEFAULT, CURRENT_BEST))
        text = f"quality with a budget of 500, rule, {cell.label}: at least 0.5"
        yield Bar(text, f"{ours:.2f} (gepa {gepas[0]:.2f} and {gepas[1]:.2f})", ours >= 0.5)
    for cell in results.cells("null"):
        if cell.noise in (0.1, 0.2):
            loss = 0.8 - mean_quality(results.of(cell), BUDGET)
            yield Bar(f"loss of quality, null, {cell.label}: at most 0.03", f"{loss:.3f}", loss <= 0.03)
    for cell in results.cells("rule"):
        if (cell.rows, cell.noise, cell.learns) == (20, 0.05, 0.5):
            ours, *gepas = (mean_quality(results.of(cell, engine), 1000) for engine in (OURS, DEFAULT, CURRENT_BEST))
            text = f"quality at 1,000 rollouts, rule, {cell.label}: at least that of gepa"
            yield Bar(text, f"{ours:.2f} (gepa {gepas[0]:.2f} and {gepas[1]:.2f})", ours >= max(gepas))


def window_bars(results: Results) -> Iterator[Bar]:
    """Check what wider windows cost."""
    for window, bar, goal in ((8, 3.5, 1.5), (32, 4.0, 1.5)):
        found = [(to_target(results, cell, OURS, window), cell) for cell in results.cells(*TARGETS)]
        ratios = [(value.median, cell) for value, cell in found if value]
        if not ratios:
            continue
        high = max(ratios)
        above = sum(value > bar for value, _ in ratios)
        within = sum(value <= goal for value, _ in ratios)
        measured = f"{factor(min(ratios)[0])} to {times(high[0])}, at most {goal:g} in {within} of {len(ratios)} cells"
        if above:
            measured += f"; {above} above, highest: {high[1].world}, {high[1].label}"
        yield Bar(f"window {window} to window 1, rollouts: at most {bar:g} (goal {goal:g})", measured, not above)
    for worlds, text in ((("rule", "conflict"), "rule and conflict"), (tuple(TARGETS), "all worlds")):
        found = [(to_target(results, cell, CURRENT_BEST, 1, (OURS, 32)), cell) for cell in results.cells(*worlds)]
        ratios = [(value.median, cell) for value, cell in found if value]
        if ratios:
            low, below = min(ratios), sum(value < 1 - TINY for value, _ in ratios)
            measured = f"at least {times(low[0])} in {len(ratios)} cells"
            measured += f"; {below} below, lowest: {low[1].world}, {low[1].label}" if below else ""
            yield Bar(f"gepa current_best, serial, to window 32, {text}: at least 1", measured, not below)


def clock_bars(results: Results) -> Iterator[Bar]:
    """Check the time to the target."""
    others = [(OURS, 1, "window 1"), (DEFAULT, 1, ""), (CURRENT_BEST, 1, ""), (WIDE[0], 1, ""), (WIDE[1], 1, "")]
    for engine, width, name in others:
        ratios = []
        for cell in clock_cells(results):
            found = [clock(results, cell, engine, width, (OURS, window)) for window in (8, 32)]
            ratios += [(max(value.median for value in found if value), cell)] if any(found) else []
        if ratios:
            low, below = min(ratios), sum(value < 3 for value, _ in ratios)
            measured = f"{factor(low[0])} to {times(max(ratios)[0])} in {len(ratios)} cells"
            measured += f"; {below} below, lowest: {low[1].world}, {low[1].label}" if below else ""
            text = f"seconds to the target, {name or NAMES[engine]} to the faster of window 8 and 32: at least 3"
            yield Bar(text, measured, not below)


def honesty_bars(results: Results) -> Iterator[Bar]:
    """Check the claims."""
    for world, lines in results.honesty.items():
        found = honesty(lines)
        if world in ("same", "harm"):
            yield Bar(f"claims, {world}: at most 3 %", f"{found['claims']:.1%}", found["claims"] <= 0.03)
        for name, of in (("bias", "preferred"), ("bias_returned", "returned")):
            text = f"reported minus true, {world}, {of} candidate: at most 0.005"
            yield Bar(text, f"{found[name]:+.4f}", abs(found[name]) <= 0.005)
        score = found["score_coverage"]
        yield Bar(f"coverage of the score, {world}: 93 to 97 %", f"{score:.1%}", 0.93 <= score <= 0.97)
        if world not in ("same", "harm") and found["gains"]:
            gain = found["gain_coverage"]
            yield Bar(f"coverage of the gain, {world}: 93 to 97 %", f"{gain:.1%}", 0.93 <= gain <= 0.97)


def bars_table(bars: Iterable[Bar]) -> Iterator[str]:
    """Write requirements with their results."""
    words = {True: "yes", False: "**no**", None: "not measured"}
    yield from table(["requirement", "measured", "holds"], [[bar.text, bar.measured, words[bar.holds]] for bar in bars])


# Charts

COLOURS = {OURS: "#1f6feb", REFERENCE: "#8250df", DEFAULT: "#cf222e", CURRENT_BEST: "#d4830f"}
WINDOW_COLOURS = {(OURS, 1): "#1f6feb", (OURS, 8): "#0a7d4f", (OURS, 32): "#8250df", (CURRENT_BEST, 1): "#d4830f"}
WIDTH, HEIGHT, LEFT, TOP, GAP = 200, 120, 44, 58, 54
COLUMNS = 4


@dataclass
class Line:
    """A line of a panel."""

    colour: str
    points: list[tuple[float, float]]


@dataclass
class Panel:
    """A small chart with its lines."""

    title: str
    lines: list[Line]


def svg(title: str, legend: list[tuple[str, str]], panels: list[Panel], unit: str, end: float) -> str:
    """Draw panels with a common scale: quality from 0 to 1 against `unit` from 0 to `end`."""
    rows = math.ceil(len(panels) / COLUMNS)
    width = LEFT + COLUMNS * (WIDTH + GAP)
    height = TOP + rows * (HEIGHT + GAP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11" fill="#24292f">',
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    at = float(LEFT)
    for name, colour in legend:
        out += [f'<rect x="{at:.0f}" y="12" width="18" height="3" fill="{colour}"/>']
        out += [f'<text x="{at + 24:.0f}" y="17">{name}</text>']
        at += 44 + 6.4 * len(name)
    for number, panel in enumerate(panels):
        x, y = LEFT + number % COLUMNS * (WIDTH + GAP), TOP + number // COLUMNS * (HEIGHT + GAP)
        out += [f'<text x="{x}" y="{y - 8}" font-weight="bold">{panel.title}</text>']
        for share in (0.0, 0.5, 1.0):
            level = y + HEIGHT * (1 - share)
            out += [f'<path d="M{x} {level:.1f}h{WIDTH}" stroke="#d0d7de"/>']
            out += [f'<text x="{x - 5}" y="{level + 4:.1f}" text-anchor="end">{share:g}</text>']
        for share in (0.0, 0.5, 1.0):
            out += [
                f'<text x="{x + WIDTH * share:.0f}" y="{y + HEIGHT + 15}" text-anchor="middle">{end * share:g}</text>'
            ]
        for line in panel.lines:
            path = "L".join(f"{x + WIDTH * at / end:.1f} {y + HEIGHT * (1 - level):.1f}" for at, level in line.points)
            out += [f'<path d="M{path}" fill="none" stroke="{line.colour}" stroke-width="1.8"/>']
    out += [f'<text x="{width - GAP}" y="{height - 8}" text-anchor="end">{unit}</text>', "</svg>", ""]
    return "\n".join(out)


def curve(runs: dict[int, Run], place: int, end: float) -> list[tuple[float, float]]:
    """Return the mean quality along rollouts or seconds."""
    marks = [end * step / 75 for step in range(76)]
    return [(mark, mean_quality(runs, mark, place)) for mark in marks]


def charts(results: Results) -> dict[str, str]:
    """Draw the charts."""
    shown = [("rule", 50, 0.0), ("rule", 50, 0.1), ("rule", 200, 0.1), ("graded", 50, 0.1)]
    shown += [("conflict", 50, 0.1), ("irt", 50, 0.1), ("brittle", 50, 0.1), ("null", 50, 0.1)]
    chosen = [cell for key in shown for cell in results.cells(key[0]) if (cell.world, cell.rows, cell.noise) == key]
    chosen = [cell for cell in chosen if cell.learns == 0.5]

    def panels(engines: dict[tuple[str, int], str], cells: list[Cell], place: int, end: float) -> list[Panel]:
        found = []
        for cell in cells:
            of = [(colour, results.of(cell, *engine)) for engine, colour in engines.items()]
            lines = [Line(colour, curve(runs, place, end)) for colour, runs in of if runs]
            found.append(Panel(f"{cell.world}, {cell.label}", lines))
        return found

    engines = {(name, 1): colour for name, colour in COLOURS.items()}
    legend = [(NAMES[name], colour) for name, colour in COLOURS.items()]
    windows = [(f"sprint, window {window}", WINDOW_COLOURS[OURS, window]) for window in (1, 8, 32)]
    windows += [(NAMES[CURRENT_BEST], WINDOW_COLOURS[CURRENT_BEST, 1])]
    title = "Mean true quality of the best candidate against"
    by_rollouts = panels(engines, chosen, 0, BUDGET)
    by_seconds = panels(WINDOW_COLOURS, chosen[:4], 2, 120)
    return {
        "search-quality.svg": svg(f"{title} rollouts", legend, by_rollouts, "rollouts", BUDGET),
        "search-windows.svg": svg(f"{title} seconds", windows, by_seconds, "simulated seconds", 120),
    }


# The page


INTRODUCTION = """\
Written on {day} by `make bench-search`, on a machine with {cores} cores: {runs:,} runs. Each cell has {count} runs with
the random seeds {first} to {last} and a budget of {budget:,} rollouts. `sprint` and `reference` are the two searches of
this project. gepa is version {version} from PyPI, with its default choice of parents and with `current_best`. All of
them meet the same rows, proposer and seeds; no language model takes part.

gepa and `sprint` have minibatches of 3 rows, the default of gepa. `reference` has 8 rows, its default for this budget:
its mean quality is 0.48 with 8 rows and 0.34 with 3. The default of `sprint` is 8 rows too, with 0.68 instead of 0.66
([decision 33](decisions/0033-runs-search-in-sprints.md)).

*Rollouts to the target* are the rollouts until the best candidate that the optimizer declares is truly at the target.
Truth is the quality without noise: 1.0 is all that the rows can teach. A run that does not get there counts with the
budget: a ratio is a lower bound if only the other optimizer does not get there, and 1.00 if none of them does. A ratio
is the median over the seeds of the rollouts of the other optimizer divided by those of `sprint` for the same seed, with
its 95 % paired bootstrap interval. Above 1, `sprint` is ahead.

![Quality of the best candidate against rollouts]({charts}/search-quality.svg)
"""
BEHIND = """\
With 20 rows, this budget is more than 50 rollouts for each row. There `auto`, the default of `gepa.search`,
chooses `reference`, which is ahead of `sprint` in these worlds.
"""

WINDOWS = """\
Rollouts of `sprint` to the target with 8 and 32 candidates in flight, and their ratio to window 1: below 1, the wide
window needs fewer. In the last column a ratio above 1 means that window 32 needs fewer rollouts than gepa.
"""
TIME = """\
Median simulated seconds to the target with 64 workers, 200 ms for a rollout and 1 s for a proposer turn. gepa runs each
evaluation on all workers, and with 8 proposals also the 8 turns and their evaluations side by side. `never`: at least
half of the runs spend their budget before they are at the target.

![Quality of the best candidate against seconds]({charts}/search-windows.svg)
"""
HONESTY = """\
`same`: no proposal changes anything. `harm`: every proposal harms. In `rule` and `graded` there is something to gain,
and the budget is small. A claim is the verdict `better` of the run, and the gain with its interval is that of the claim
([statistics](how/statistics.md)). Reported minus true compares the held-out score that a run reports with the expected
score on new rows, with the noise: for the candidate that the search prefers, and for the one that a run returns, which
is the initial one without a claim.
"""
GEPA_BIAS = """\
For comparison, the validation score of gepa's best candidate minus its expected score, where nothing can be gained:
"""


def section(results: Results, day: str, place: str) -> Iterator[str]:
    """Write the section."""
    seeds = sorted({seed for runs in results.runs.values() for seed in runs})
    yield from ("## Search", "")
    yield INTRODUCTION.format(
        day=day,
        cores=os.cpu_count(),
        runs=sum(map(len, results.runs.values())) + sum(map(len, results.honesty.values())),
        count=min(map(len, results.runs.values())),
        first=seeds[0],
        last=seeds[-1],
        budget=BUDGET,
        version=results.gepa_version,
        charts=place,
    )
    bars = [*comparison_bars(results), *quality_bars(results), *window_bars(results), *clock_bars(results)]
    yield from ("### Requirements", "", *bars_table([*bars, *honesty_bars(results)]))
    yield from ("### Where sprint is behind", "", BEHIND, *behind(results))
    yield from ("### Rollouts to the target", "", *target_tables(results))
    yield from ("### Quality", "", f"Mean true quality at {', '.join(f'{mark:,}' for mark in MARKS)} rollouts.", "")
    yield from quality_table(results)
    yield from ("### Windows", "", WINDOWS, *window_table(results))
    yield from ("### Time", "", TIME.format(charts=place), *clock_table(results))
    yield from ("### Honesty", "", HONESTY, *honesty_table(results), GEPA_BIAS, *selection_bias(results))


def rewrite(path: Path, begin: str, end: str, lines: Iterable[str]) -> None:
    """Write the section between two marks of a page; the rest of the page stays as it is."""
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        sys.exit(f"{path}: the marks of the section are missing: {begin} and {end}")
    path.write_text(before + "\n".join([begin, "", *lines]).rstrip() + "\n\n" + end + after, encoding="utf-8")


def main() -> None:
    """Read the results, write the page and the charts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, required=True, help="directory of the JSON lines")
    parser.add_argument("--page", type=Path, required=True, help="page with the two marks")
    parser.add_argument("--charts", type=Path, required=True, help="directory of the charts")
    parser.add_argument("--date", default=date.today().isoformat(), help="date of the measurement")
    options = parser.parse_args()
    results = read(options.results)
    place = os.path.relpath(options.charts, options.page.parent)
    rewrite(options.page, BEGIN, END, section(results, options.date, place))
    for name, text in charts(results).items():
        (options.charts / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
