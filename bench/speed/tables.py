"""The tables of the section."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bars import busy_bars, overhead_bars, time_bars
from overhead import SERIAL, SMALL
from samples import Figure, Samples

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
