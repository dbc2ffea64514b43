"""The cells of a session: which product is measured in which form, and at which size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from busy import SCENES, GepaScene, OwnScene
from overhead import COMMAND_LINE, LARGE, MANY_ROLLOUTS, SERIAL, Cell
from replay import Replay
from resume import GepaResume, Resume
from setting import Setting
from startup import COMMANDS, Command, FirstRollout


class Measurable(Protocol):
    """Something that a session measures once in every round."""

    def key(self) -> dict[str, Any]:
        """Return what tells it from the others."""

    def measure(self, setting: Setting) -> Mapping[str, Any]:
        """Measure it once."""


def overhead_cells(sizes: tuple[int, ...]) -> Iterator[Cell]:
    """Return the cells, so that those of a size are neighbours."""
    for rollouts in sizes:
        for form in (*COMMAND_LINE, "api"):
            yield Cell("overhead", "ours", form, rollouts)
        yield Cell("overhead", "gepa over HTTP", "durable", rollouts)
        yield Cell("overhead", "gepa in process", "durable", rollouts)
        yield Cell("overhead", "gepa in process", "in memory", rollouts)
        yield Cell("overhead", "dspy in process", "in memory", rollouts)
        yield Cell("overhead", "ours", "quiet", rollouts, cache="readwrite")
        if rollouts < MANY_ROLLOUTS:
            yield Cell("overhead", "ours", "quiet", rollouts, reply_bytes=LARGE)
            yield Cell("overhead", "gepa over HTTP", "durable", rollouts, reply_bytes=LARGE)
            yield Cell("overhead", "gepa in process", "durable", rollouts, reply_bytes=LARGE)
    middle = sizes[len(sizes) // 2]
    for form in ("quiet", "api"):
        yield Cell("overhead", "ours", form, middle, workers=1)
        yield Cell("overhead", "ours", form, middle, workers=64)
        yield Cell("overhead", "ours", form, middle, workers=64, schedule=SERIAL)
    yield Cell("overhead", "ours", "quiet", middle, workers=64, schedule=SERIAL, cache="readwrite")
    yield Cell("overhead", "ours", "quiet", middle, search="sprint")
    yield Cell("overhead", "ours", "quiet", middle, workers=64, search="sprint")


def growth_cells(sizes: tuple[int, ...]) -> Iterator[Cell]:
    """Return runs of growing length on few rows, so that the candidates grow with them."""
    for rollouts in sizes:
        yield Cell("growth", "ours", "api", rollouts)
        yield Cell("growth", "gepa over HTTP", "durable", rollouts)
        yield Cell("growth", "gepa in process", "durable", rollouts)
        yield Cell("growth", "dspy in process", "in memory", rollouts)


def plan(*, is_quick: bool) -> dict[str, list[Measurable]]:
    """Return the cells by part. The short form measures everything that the long one does, on small runs."""
    sizes = (200, 1_000) if is_quick else (1_000, 10_000, 100_000)
    long = (500, 1_000) if is_quick else (5_000, 10_000, 25_000, 50_000)
    stored = (1_000,) if is_quick else (10_000, 100_000)
    scenes = ("CL",) if is_quick else SCENES
    return {
        "startup": [*map(Command, COMMANDS), *map(FirstRollout, ("ours", "gepa"))],
        "overhead": list(overhead_cells(sizes)),
        "growth": list(growth_cells(long)),
        "replay": [Replay(size) for size in stored],
        "resume": [*map(Resume, stored), GepaResume(stored[0])],
        "busy": [
            *(OwnScene(scene, search) for scene in scenes for search in ("reference", "sprint")),
            *(GepaScene(width, 1_000 if is_quick else 6_000) for width in (1, 8)),
        ],
    }
