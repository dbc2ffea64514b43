"""`runs list`: one line per run beneath a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from synth_optimizers.cli.faults import Refusal, fault_of
from synth_optimizers.cli.find import run_dirs
from synth_optimizers.cli.output import say, table, write_json
from synth_optimizers.cli.words import money, number, when
from synth_optimizers.errors import SynthOptimizerError
from synth_optimizers.status import RunStatus

__all__ = ["list_runs", "state_of"]


def list_runs(root: Path, *, as_json: bool) -> None:
    """List the runs beneath a directory, the newest first; one that cannot be read does not hide the others."""
    if not root.is_dir():
        raise Refusal(
            f"{root} is not a directory, so there are no runs in it",
            "Name the directory that holds the runs with --root; it is run.output_dir of the configuration.",
        )
    found: list[RunStatus] = []
    problems: list[tuple[Path, str]] = []
    for path in run_dirs(root):
        try:
            found.append(RunStatus.read(path))
        except SynthOptimizerError as error:
            problems.append((path, fault_of(error).message))
    found.sort(key=lambda status: (status.started_at or "", status.run_id), reverse=True)
    if as_json:
        unreadable: list[dict[str, Any]] = [{"run_dir": str(path), "problem": problem} for path, problem in problems]
        runs = [{**status.to_dict(), "state": state_of(status)} for status in found]
        write_json({"root": str(root), "runs": runs, "unreadable": unreadable})
        return
    if found:
        titles = ("run", "state", "train", "held-out", "rollouts", "cost", "started (UTC)")
        table(titles, [_row(status) for status in found])
    elif not problems:
        say(f"no runs in {root}")
    for path, problem in problems:
        say(f"warning: {path} cannot be read: {problem}")


def state_of(status: RunStatus) -> str:
    """Return the state of a run; one that is not over and that nobody works on is interrupted."""
    if status.is_over or status.is_held:
        return status.state
    return "failed" if status.state == "failed" else "interrupted"


def _row(status: RunStatus) -> tuple[str, ...]:
    train = "-" if status.best_score is None else number(status.best_score.mean)
    heldout = "-" if status.best_heldout_score is None else number(status.best_heldout_score.mean)
    rollouts = f"{status.rollouts_finished + status.rollouts_failed:,}"
    started = when(status.started_at).removesuffix("Z")[:16]
    return status.run_id, state_of(status), train, heldout, rollouts, money(status.cost_usd), started
