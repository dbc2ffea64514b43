"""Runs that take long enough to be watched and interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.example import Example, example_config

RUN = ("gepa", "run", "--config", "gepa.toml")
DELAY = 0.15
LONG = {"dataset__train_seeds": list(range(48)), "gepa__max_generations": 100, "gepa__max_total_rollouts": 5000}
"""The settings of a run that continues until a test ends it."""


def slow_config(directory: Path, example: Example, **changes: object) -> None:
    """Write the configuration of a run of a few seconds."""
    settings: dict[str, object] = {
        "run__run_id": "router",
        "dataset__train_seeds": list(range(16)),
        "dataset__heldout_seeds": list(range(4)),
        "gepa__search": "reference",
        "gepa__max_generations": 3,
        "gepa__max_total_rollouts": 140,
        "gepa__proposals_per_generation": 2,
        "gepa__score_threshold_value": None,
        "cache__path": "cache.sqlite",
    }
    example_config(directory, example, **{**settings, **changes})


def events(place: Path) -> list[dict[str, Any]]:
    """Return the events of the run so far."""
    feed = place / "runs" / "router" / "events.jsonl"
    whole = feed.read_text().rpartition("\n")[0] if feed.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def has_event(place: Path, kind: str) -> Callable[[], bool]:
    """Return whether the run has an event of a type."""
    return lambda: any(event["type"] == kind for event in events(place))
