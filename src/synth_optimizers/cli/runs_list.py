"""`runs list`: one line per run beneath a directory, or of a service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from synth_optimizers.cli.faults import Refusal, fault_of
from synth_optimizers.cli.find import run_dirs
from synth_optimizers.cli.local import state_of
from synth_optimizers.cli.output import say, table, write_json
from synth_optimizers.cli.words import money, number, when
from synth_optimizers.errors import SynthOptimizerError
from synth_optimizers.status import RunStatus

if TYPE_CHECKING:
    from synth_optimizers.client import Client

__all__ = ["list_requests", "list_runs"]

TITLES = ("run", "state", "train", "held-out", "rollouts", "cost", "started (UTC)")


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
        table(TITLES, [_row(status, state_of(status)) for status in found])
    elif not problems:
        say(f"no runs in {root}")
    for path, problem in problems:
        say(f"warning: {path} cannot be read: {problem}")


def list_requests(client: Client, *, as_json: bool) -> None:
    """List the runs of a service, the newest first; one that cannot be read does not hide the others."""
    from synth_optimizers.cli.remote import state_of_request, status_of_request

    found = []
    problems: list[tuple[str, str]] = []
    for request in client.runs(page_size=200):
        run = None
        if request.started_at is not None:
            # The list tells of requests; the scores are with each run that has begun.
            try:
                detail = client.run(request.run_id)
                # A run that was submitted again has several requests, and the details are those of the newest.
                run = detail.run if detail.request.request_id == request.request_id else None
            except SynthOptimizerError as error:
                problems.append((request.run_id, fault_of(error).message))
        found.append((request, status_of_request(request, run), state_of_request(request, run)))
    if as_json:
        runs = [{**status.to_dict(), "state": state, "request": entry.to_dict()} for entry, status, state in found]
        unreadable = [{"run_id": run_id, "problem": problem} for run_id, problem in problems]
        write_json({"service": client.base_url, "runs": runs, "unreadable": unreadable})
        return
    if found:
        table(TITLES, [_row(status, state) for _, status, state in found])
    else:
        say(f"no runs at {client.base_url}")
    for run_id, problem in problems:
        say(f"warning: {run_id} cannot be read: {problem}")


def _row(status: RunStatus, state: str) -> tuple[str, ...]:
    train = "-" if status.best_score is None else number(status.best_score.mean)
    heldout = "-" if status.best_heldout_score is None else number(status.best_heldout_score.mean)
    rollouts = f"{status.rollouts_finished + status.rollouts_failed:,}"
    started = when(status.started_at).removesuffix("Z")[:16]
    return status.run_id, state, train, heldout, rollouts, money(status.cost_usd), started
