"""Writes the section "Speed" of the benchmark page, and its chart, from the JSON lines of `measure.py`.

Usage: python report.py --results target/bench-speed/speed.jsonl [--page docs/benchmarks.md --charts docs/assets]

Without a page, the section goes to standard output.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bars import busy_bars, overhead_bars, time_bars
from chart import Line, Panel, svg
from overhead import SERIAL, SMALL
from samples import Figure, Samples
from words import BUSY, DISK, GROWTH, INTRODUCTION, OVERHEAD, PEERS_BETTER, REPLAY, STARTUP

BEGIN = "<!-- The section below is written by `make bench-speed`. -->"
END = "<!-- End of the section that `make bench-speed` writes. -->"
CHART = "speed.svg"
COLOURS = {
    "ours": "#1f6feb",
    "gepa over HTTP": "#cf222e",
    "gepa in process": "#d4830f",
    "dspy in process": "#8250df",
}
NAMES = {"ours": "this product"}
KILO = "{:.1f}".format
WHOLE = "{:,.0f}".format
SHARE = "{:.3f}".format


def table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """Write a table."""
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def requirements(samples: Samples, middle: int) -> Iterator[str]:
    """Write the limits with their results."""
    bars = [*overhead_bars(samples, middle), *time_bars(samples), *busy_bars(samples)]
    rows = [[bar.text, bar.measured, "yes" if bar.holds else "**no**"] for bar in bars]
    yield from table(["requirement", "measured", "holds"], rows)


def cell_name(line: dict[str, Any]) -> str:
    """Write what a cell of the overhead is."""
    product = str(line["product"])
    words = [f"{NAMES.get(product, product)}, {line['form']}"]
    words += [f"{line['workers']} worker{'s' * (line['workers'] > 1)}"] if product == "ours" else []
    words += ["one generation at a time"] if line["schedule"] == SERIAL and line["workers"] > 1 else []
    words += ["cache"] if line["cache"] != "off" else []
    words += ["sprint"] if line["search"] != "reference" else []
    words += ["64 KB"] if line["reply_bytes"] != SMALL else []
    return ", ".join(words)


def spread(found: list[dict[str, Any]], name: str, write: Callable[[float], str], scale: float = 1.0) -> str:
    """Write the median and the range of a figure."""
    return Figure(tuple(float(line[name]) / scale for line in found)).written(write)


def overhead_table(samples: Samples, part: str) -> Iterator[str]:
    """Write what runs have used, by their length."""
    head = ["run", "rollouts", "candidates", "CPU us", "wall us", "KB written", "KB kept", "peak MB"]
    cells: dict[str, list[dict[str, Any]]] = {}
    for line in sorted(samples.of(part=part), key=lambda line: int(line["rollouts"])):
        cells.setdefault(line["id"].rpartition(",")[0], []).append(line)
    rows = []
    for found in cells.values():
        done, candidates = (int(statistics.median(line[name] for line in found)) for name in ("done", "candidates"))
        stopped = ", stopped" if any(line["is_capped"] for line in found) else ""
        figures = [spread(found, name, WHOLE) for name in ("cpu_micros", "wall_micros")]
        figures += [spread(found, name, KILO, 1e3) for name in ("written", "kept")]
        rows.append(
            [cell_name(found[0]), f"{done:,}{stopped}", f"{candidates}", *figures, spread(found, "peak_mb", WHOLE)]
        )
    yield from table(head, rows)


def better_peers(samples: Samples) -> Iterator[str]:
    """Write every figure in which a peer is better than this product."""
    figures = {"cpu_micros": "CPU, us", "wall_micros": "wall, us", "written": "bytes written", "kept": "bytes kept"}
    figures |= {"peak_mb": "peak MB"}
    own = {"product": "ours", "form": "quiet", "workers": 8, "cache": "off", "search": "reference", "schedule": "auto"}
    cells = {line["id"].rpartition(",")[0]: line for line in samples.of(part="overhead") if line["product"] != "ours"}
    rows = []
    for name, words in figures.items():
        for line in sorted(cells.values(), key=lambda line: (line["reply_bytes"], line["rollouts"])):
            same = {key: line[key] for key in ("part", "rollouts", "reply_bytes")}
            ours = samples.figure(name, **same, **own)
            theirs = samples.figure(name, **same, product=line["product"], form=line["form"])
            # A peer that keeps its state in memory keeps and writes nothing: that is no figure.
            is_kept = name not in ("written", "kept") or line["form"] == "durable"
            if ours and theirs and is_kept and theirs.median < ours.median:
                rows.append([words, f"{line['rollouts']:,}", cell_name(line), WHOLE(theirs.median), WHOLE(ours.median)])
    if rows:
        yield from table(["figure", "rollouts", "peer", "peer's", "this product"], rows)
    else:
        yield from ("None of the figures above.", "")


def startup_table(samples: Samples) -> Iterator[str]:
    """Write the times of commands and imports."""
    rows = []
    for name in samples.values("what", part="startup"):
        for product in dict.fromkeys(line.get("product") for line in samples.of(part="startup", what=name)):
            figure = samples.figure("wall_ms", part="startup", what=name, **({"product": product} if product else {}))
            words = f"first rollout, {NAMES.get(product, product)}" if product else f"`{name}`"
            rows += [[words, figure.written(WHOLE)]] if figure else []
    yield from table(["what", "wall ms"], rows)


def replay_table(samples: Samples) -> Iterator[str]:
    """Write replays and resumed runs."""
    seconds = "{:.2f}".format
    rows = []
    for rollouts in samples.values("rollouts", part="replay"):
        wall, cpu = (samples.figure(name, part="replay", rollouts=rollouts) for name in ("wall_seconds", "cpu_seconds"))
        if wall and cpu:
            rows.append([f"readonly replay of {rollouts:,} rollouts", wall.written(seconds), cpu.written(seconds)])
    for product in samples.values("product", part="resume"):
        for rollouts in samples.values("rollouts", part="resume", product=product):
            figure = samples.figure("seconds", part="resume", product=product, rollouts=rollouts)
            words = f"{rollouts:,} rollouts, killed near the end, to the next rollout: {NAMES.get(product, product)}"
            rows += [[words, figure.written(seconds), ""]] if figure else []
    yield from table(["what", "wall s", "CPU s"], rows)


def busy_table(samples: Samples) -> Iterator[str]:
    """Write the shares of busy workers."""
    rows = []
    for scene in samples.values("scene", part="busy"):
        for line in {line["id"].rpartition(",")[0]: line for line in samples.of(part="busy", scene=scene)}.values():
            key = {name: line[name] for name in ("part", "product", "scene", "search", "width") if name in line}
            words = line["search"] if "search" in line else f"gepa, {line['width']} proposals"
            figure = samples.figure("busy", **key)
            rows += [[scene, words, figure.written(SHARE)]] if figure else []
    yield from table(["scene", "search", "share of the workers that are busy"], rows)


def lines_of(samples: Samples, part: str, across: str, up: str) -> list[Line]:
    """Return a line for each product."""
    forms = {"ours": "quiet" if part == "overhead" else "api", "dspy in process": "in memory"}
    drawn = []
    for product, colour in COLOURS.items():
        form = forms.get(product, "durable")
        if up == "written" and form == "in memory":
            continue
        key = {"part": part, "product": product, "form": form, "cache": "off", "search": "reference", "workers": 8}
        key |= {"reply_bytes": SMALL}
        points = []
        for rollouts in samples.values("rollouts", **key):
            at, value = (samples.figure(name, rollouts=rollouts, **key) for name in (across, up))
            points += [(at.median, value.median)] if at and value and value.median > 0 else []
        drawn += [Line(colour, points)] if points else []
    return drawn


def chart(samples: Samples) -> str:
    """Draw processor time and bytes against the length of the run, and processor time against the candidates."""
    panels = [
        Panel("CPU of a rollout, us", "rollouts", lines_of(samples, "overhead", "done", "cpu_micros")),
        Panel("CPU of a rollout, us", "candidates", lines_of(samples, "growth", "candidates", "cpu_micros")),
        Panel("bytes written for a rollout", "rollouts", lines_of(samples, "overhead", "done", "written")),
    ]
    legend = {NAMES.get(name, name): colour for name, colour in COLOURS.items()}
    return svg("What an optimizer itself uses for a rollout", legend, panels)


def section(samples: Samples, charts: str) -> Iterator[str]:
    """Write the section."""
    last, machine = samples.lines[-1], samples.lines[-1]["machine"]
    sizes = sorted(samples.values("rollouts", part="overhead")) or [0]
    repeats = 1 + max(int(line["repeat"]) for line in samples.lines)
    yield from ("## Speed", "")
    yield INTRODUCTION.format(day=last["date"], repeats=repeats, chart=f"{charts}/{CHART}", **machine)
    yield from ("### Speed: requirements", "", *requirements(samples, sizes[len(sizes) // 2]))
    yield from ("### Overhead of a rollout", "", OVERHEAD, *overhead_table(samples, "overhead"))
    yield from ("### Growth", "", GROWTH, *overhead_table(samples, "growth"))
    yield from ("### Where a peer is better", "", PEERS_BETTER, *better_peers(samples))
    yield from ("### What is kept on disk", "", DISK)
    yield from ("### Start-up", "", STARTUP, *startup_table(samples))
    yield from ("### Replay and resuming", "", REPLAY, *replay_table(samples))
    yield from ("### Workers busy", "", BUSY, *busy_table(samples))


def rewrite(page: Path, lines: Iterable[str]) -> None:
    """Write the section between the marks of the page; the rest stays as it is."""
    before, found, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not found or not found_end:
        sys.exit(f"{page}: the marks of the section are missing: {BEGIN} and {END}")
    page.write_text(before + "\n".join([BEGIN, "", *lines]).rstrip() + "\n\n" + END + after, encoding="utf-8")


def main() -> None:
    """Read the results, write the page and the chart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, required=True, help="file of the JSON lines")
    parser.add_argument("--page", type=Path, help="page with the two marks")
    parser.add_argument("--charts", type=Path, help="directory of the chart, if there is a page")
    options = parser.parse_args()
    samples = Samples(options.results)
    if options.page is None:
        sys.stdout.write("\n".join(section(samples, ".")))
        return
    rewrite(options.page, section(samples, os.path.relpath(options.charts, options.page.parent)))
    (options.charts / CHART).write_text(chart(samples), encoding="utf-8")


if __name__ == "__main__":
    main()
