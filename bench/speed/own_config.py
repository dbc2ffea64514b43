"""Configurations of the measured runs of this product, as a mapping and as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from task import FIELD

Json = dict[str, Any]


def own_config(
    *,
    container: str,
    proposer: str,
    run_id: str,
    rows: int,
    rollouts: int,
    workers: int,
    cache: str,
    search: str = "reference",
    schedule: str = "auto",
) -> Json:
    """Return the configuration of a run like those of gepa: minibatches of 3 rows, and every rollout counts."""
    return {
        "run": {"run_id": run_id, "output_dir": "runs", "seed": 7},
        "container": {"url": container},
        "taskset": {"train_ids": [f"train:{row}" for row in range(rows)], "heldout_ids": ["test:0", "test:1"]},
        "candidate": {"target_modules": [FIELD]},
        "policy": {"model": "gpt-4.1-nano"},
        "proposer": {
            "backend": "openai_compatible",
            "base_url": f"{proposer}/v1",
            "model": "scripted",
            "edits": "always",
            "max_consecutive_invalid": 1_000_000,
        },
        "cache": {"mode": cache, "path": "cache.sqlite", "namespace": "speed"},
        "disk_budget": {"enabled": False},
        "gepa": {
            "search": search,
            "minibatch_size": 3,
            "max_total_rollouts": rollouts,
            "leakage": {"policy": "allow"},
            "pipeline": {"mode": schedule, "workers": {"rollout": workers}},
        },
    }


def as_toml(sections: Mapping[str, Any], prefix: str = "") -> str:
    """Write a mapping as TOML. Its values are texts, numbers, truth values, and lists of texts."""
    plain = {name: value for name, value in sections.items() if not isinstance(value, Mapping)}
    text = f"[{prefix}]\n" if prefix and plain else ""
    text += "".join(f"{name} = {json.dumps(value)}\n" for name, value in plain.items())
    for name, value in sections.items():
        if isinstance(value, Mapping):
            text += as_toml(value, f"{prefix}.{name}" if prefix else name)
    return text


def write_config(directory: Path, sections: Mapping[str, Any]) -> Path:
    """Write the configuration of a run, and return its path."""
    path = directory / "gepa.toml"
    path.write_text(as_toml(sections), encoding="utf-8")
    return path
