"""Writes the section "Speed" of the benchmark page, and its chart, from the JSON lines of `measure.py`.

Usage: python report.py --results target/bench-speed/speed.jsonl [--page docs/benchmarks.md --charts docs/assets]

Without a page, the section goes to standard output.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from chart import Line, Panel, svg
from overhead import SMALL
from samples import Samples
from tables import NAMES, better_peers, busy_table, overhead_table, replay_table, requirements, startup_table
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
