"""Run directories by path or by run id."""

from __future__ import annotations

import difflib
from pathlib import Path

from synth_optimizers.cli.faults import Refusal

__all__ = ["find_run", "is_run_dir", "run_dirs"]

MARKS = ("workspace.sqlite", "events.jsonl", "result_manifest.json")


def is_run_dir(path: Path) -> bool:
    """Return whether a directory holds a run."""
    return any((path / mark).exists() for mark in MARKS)


def run_dirs(root: Path) -> list[Path]:
    """Return the runs beneath a directory, by name; `latest` is only another name of one of them."""
    try:
        return sorted(path for path in root.iterdir() if not path.is_symlink() and is_run_dir(path))
    except OSError:
        return []


def find_run(run: str, root: Path) -> Path:
    """Return the directory of a run that is named by its directory or by its id beneath the root."""
    for path in (Path(run), root / run):
        if is_run_dir(path):
            return path
    if Path(run).is_dir():
        raise Refusal(
            f"{run} is not the directory of a run: it holds none of {', '.join(MARKS)}",
            "Name a directory that `synth-optimizers gepa run` has written; `synth-optimizers runs list` shows them.",
        )
    known = [path.name for path in run_dirs(root)]
    if not known:
        raise Refusal(
            f"there is no run {run!r}: {run} is not a directory, and {root} holds no runs",
            "Name the directory of a run, or name the directory that holds the runs with --root.",
        )
    near = difflib.get_close_matches(run, known, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    shown = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    raise Refusal(f"there is no run {run!r} in {root}", f"{hint}Runs in {root}: {shown}.")
