"""`synth-optimizers runs`: commands on runs, in directories and of a service."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from synth_optimizers.cli.apply import apply
from synth_optimizers.cli.errors import CommandError, error_report, exit_code_for
from synth_optimizers.cli.explore import compare, lineage, rows, transcript
from synth_optimizers.cli.formatting import (
    format_concurrency,
    format_cost,
    format_count,
    format_number,
    format_purposes,
    format_shortfall,
    format_stop_rule,
    format_time,
    format_waiting,
    one_line,
    pluralize,
)
from synth_optimizers.cli.options import (
    json_option,
    quiet_option,
    root_option,
    run_argument,
    service_option,
    token_option,
)
from synth_optimizers.cli.output import print_message, write_json, write_lines, write_table, write_text
from synth_optimizers.cli.page import report
from synth_optimizers.cli.queue_runs import delete, prune, stop, submit
from synth_optimizers.cli.results import best, diff, export
from synth_optimizers.cli.session import follow
from synth_optimizers.cli.source import RunSource, local_state, open_client, reject_token, run_dirs
from synth_optimizers.cli.summary import SPLITS, command_for, comparison_lines, result_lines, summary_lines
from synth_optimizers.cli.view import Progress, view_for
from synth_optimizers.errors import SynthOptimizerError
from synth_optimizers.status import RunStatus

if TYPE_CHECKING:
    from synth_optimizers.client import Client

TITLES = ("run", "state", "train", "held-out", "rollouts", "cost", "started (UTC)")
CANDIDATE_TITLES = ("candidate", "gen", "train", "held-out", "status", "parent", "screen", "reason")
CANCELLED = "synth_optimizer_cancelled"

ListedRun = tuple[RunStatus, dict[str, Any]]
"""The status of a run, and the additional keys of its JSON: the state, and the run request of a service."""
UnreadableRuns = list[tuple[str, str]]
"""Runs that cannot be read, each with the reason. The other runs are listed anyway."""

reason_option = click.option(
    "--reason", default="requested on the command line", show_default=True, help="The reason, for the log."
)


@click.group()
def runs() -> None:
    """Show runs and their results, and control active runs.

    RUN is the directory of a run, a run id beneath --root, or http://HOST:PORT/runs/RUN_ID; with --service, it is a
    run id there.
    """


@runs.command("list")
@root_option
@service_option
@token_option
@json_option
def list_(root: Path, service: str | None, token_file: Path | None, as_json: bool) -> None:
    """List runs, the newest first."""
    if service is None:
        reject_token(token_file, str(root))
        kind, name, place, (found, problems) = "root", "run_dir", str(root), _runs_in_directory(root)
    else:
        client = open_client(service, token_file)
        kind, name, place, (found, problems) = "service", "run_id", client.base_url, _runs_of_service(client)
    if as_json:
        listed = [{**status.to_dict(), **more} for status, more in found]
        unreadable = [{name: run, "problem": problem} for run, problem in problems]
        write_json({kind: place, "runs": listed, "unreadable": unreadable})
        return
    if found:
        write_table(TITLES, [_status_row(status, more["state"]) for status, more in found])
    elif not problems:
        print_message(f"no runs {'in' if service is None else 'at'} {place}")
    for run, problem in problems:
        print_message(f"warning: {run} cannot be read: {problem}")


def _runs_in_directory(root: Path) -> tuple[list[ListedRun], UnreadableRuns]:
    if not root.is_dir():
        raise CommandError(
            f"{root} is not a directory, so it contains no runs",
            "Name the directory that contains the runs with --root; it is run.output_dir of the configuration.",
        )
    found: list[RunStatus] = []
    problems: UnreadableRuns = []
    for path in run_dirs(root):
        try:
            found.append(RunStatus.read(path))
        except SynthOptimizerError as error:
            problems.append((str(path), error_report(error).message))
    found.sort(key=lambda status: (status.started_at or "", status.run_id), reverse=True)
    return [(status, {"state": local_state(status)}) for status in found], problems


def _runs_of_service(client: Client) -> tuple[list[ListedRun], UnreadableRuns]:
    from synth_optimizers.cli.remote import request_state, request_status

    found: list[ListedRun] = []
    problems: UnreadableRuns = []
    for request in client.runs(page_size=200):
        run = None
        if request.started_at is not None:
            # The list holds run requests; scores are read from each run that has begun.
            try:
                detail = client.run(request.run_id)
                # A run that was submitted again has several run requests; details are those of the newest.
                run = detail.run if detail.request.request_id == request.request_id else None
            except SynthOptimizerError as error:
                problems.append((request.run_id, error_report(error).message))
        more = {"state": request_state(request, run), "request": request.to_dict()}
        found.append((request_status(request, run), more))
    return found, problems


def _status_row(status: RunStatus, state: str) -> tuple[str, ...]:
    train = "-" if status.best_train_score is None else format_number(status.best_train_score.mean)
    heldout = "-" if status.best_heldout_score is None else format_number(status.best_heldout_score.mean)
    rollouts = f"{status.rollouts_finished + status.rollouts_failed:,}"
    started = format_time(status.started_at).removesuffix("Z")[:16]
    return status.run_id, state, train, heldout, rollouts, format_cost(status.cost_usd), started


@runs.command(short_help="Show scores, candidates, usage and artifacts.")
@run_argument
@json_option
def show(run: RunSource, as_json: bool) -> None:
    """Show one run: scores, candidates, usage, artifacts and the last error."""
    summary, status = run.summary(), run.status()
    artifacts, place = run.artifacts(), run.place
    if as_json:
        write_json({**summary, "state": run.state(), "artifacts": [run.artifact_location(name) for name in artifacts]})
        return
    write_lines(_run_lines(status, summary, run), 12)
    if summary["candidates"]:
        write_text("")
        best_id, frontier = status.best_candidate_id, set(summary["frontier"])
        write_table(CANDIDATE_TITLES, [_candidate_row(known, best_id, frontier) for known in summary["candidates"]])
        write_text("* best, + on the frontier")
    write_text("")
    write_lines([("artifacts", str(place)), *(("", name) for name in artifacts)], 12)
    if not isinstance(place, str) and not status.is_terminal and not status.is_held:
        write_lines([("next", command_for("gepa", "resume", place))], 12)
    elif status.best_candidate_id is not None:
        write_lines([("next", command_for("runs", "diff", place))], 12)


def _run_lines(status: RunStatus, summary: dict[str, Any], run: RunSource) -> list[tuple[str, str]]:
    candidates = summary["candidates"]
    seed = candidates[0] if candidates else {}
    by_id = {known["candidate_id"]: known for known in candidates}
    best_known = by_id.get(status.best_candidate_id, {})
    lines = [("run", status.run_id), ("state", run.state()), *run.notes()]
    if status.is_held:
        lines.append(("held by", str(status.holder)))
    lines += [("started", format_time(status.started_at)), ("finished", format_time(status.finished_at))]
    sentence = claim_sentence(summary)
    for split, _ in SPLITS:
        measured = f"{split}_score"
        scores = seed.get(measured), best_known.get(measured)
        lines += comparison_lines(split, scores, summary.get(f"{split}_gain"), sentence)
    lines += result_lines(sentence)
    if status.search is not None:
        lines.append(("search", f"{status.search}: {status.search_reason}"))
    lines += [("waiting", format_waiting(waiting)) for waiting in status.waiting]
    if status.concurrency is not None:
        lines.append(("rollouts", format_concurrency(status.concurrency)))
    failed = f", {status.rollouts_failed:,} failed" if status.rollouts_failed else ""
    unknown = f", {status.unknown_outcomes:,} of unknown outcome" if status.unknown_outcomes else ""
    purposes = format_purposes(summary.get("rollouts_by_purpose") or {})
    lines += [
        ("rollouts", f"{status.rollouts_finished:,} scored{failed} of {status.rollouts_requested:,} requested"),
        *([("", purposes)] if purposes else []),
        ("proposer", f"{pluralize(status.proposer_turns, 'turn')} in {pluralize(status.generations, 'generation')}"),
        ("calls", f"{status.sent_calls:,} sent{unknown}, {status.cached_calls:,} cached"),
        ("tokens", format_count(status.total_tokens)),
        ("cost", format_cost(status.cost_usd)),
    ]
    lines += [("exceeded", format_shortfall(shortfall)) for shortfall in status.shortfalls]
    if status.stopped_by:
        lines.append(("stopped by", format_stop_rule(status.stopped_by)))
    if status.failure:
        lines.append(("error", one_line(str(status.failure.get("message", status.failure)), 300)))
        if status.failure.get("hint"):
            lines.append(("hint", str(status.failure["hint"])))
    return lines


def claim_sentence(summary: dict[str, Any]) -> str | None:
    """Return what the held-out rows of a completed run show."""
    claim = summary.get("claim")
    return None if claim is None else str(claim["sentence"])


def _candidate_row(known: dict[str, Any], best_id: str | None, frontier: set[str]) -> tuple[str, ...]:
    candidate_id = known["candidate_id"]
    mark = "*" if candidate_id == best_id else "+" if candidate_id in frontier else " "
    generation = "-" if known["generation"] is None else str(known["generation"])
    judged = known["acceptance_metadata"][-1]["reason"] if known["acceptance_metadata"] else ""
    rewards = [known[f"{name}_reward"] for name in ("train", "heldout", "minibatch")]
    train, heldout, screen = ["-" if reward is None else format_number(reward) for reward in rewards]
    parent = " and ".join(known["parent_ids"]) or known["source"]
    return f"{mark} {candidate_id}", generation, train, heldout, known["status"], parent, screen, judged


@runs.command(short_help="Watch a run of another process.")
@run_argument
@json_option
@quiet_option
def watch(run: RunSource, as_json: bool, quiet: bool) -> int:
    """Watch a run of another process or of a service until it ends; Ctrl-C does not affect the run."""
    status = run.status()
    progress = Progress(run_id=status.run_id)
    view = view_for(progress, status.limits, quiet=quiet, waiting=run.waiting)
    view.start()
    try:
        follow(run.feed(), progress, view, since=time.time())
    except KeyboardInterrupt:
        view.close([])
        print_message(f"no longer watching; the run continues. Watch again: synth-optimizers runs watch {run.place}")
        return 130
    except BaseException:
        view.close([])
        raise
    status = run.status()
    has_events = progress.final_event is not None or not status.is_terminal
    is_completed = progress.final_event is not None and progress.final_event.type == "gepa.run.finished"
    sentence = claim_sentence(run.summary()) if is_completed and not quiet else None
    lines = summary_lines(progress, run.place, time.time(), sentence=sentence)
    view.close(lines if has_events else _failure_lines(status))
    if as_json:
        write_json({**status.to_dict(), "state": run.state()})
    return _exit_code(progress, status)


def _failure_lines(status: RunStatus) -> list[tuple[str, str]]:
    """Return the failure of a run that ended before its first event."""
    known = status.failure or {}
    told = [(label, str(known[name])) for label, name in (("error", "message"), ("hint", "hint")) if known.get(name)]
    return [("run", f"{status.run_id} {status.state}"), *told]


def _exit_code(progress: Progress, status: RunStatus) -> int:
    """Return the exit code for the outcome of a run."""
    error_code = str((status.failure or {}).get("error_code", ""))
    if progress.final_event is None and status.is_terminal:
        fallback = {"completed": 0, "cancelled": exit_code_for(CANCELLED)}.get(status.state, 1)
        return exit_code_for(error_code, fallback)
    if progress.final_event is None:
        # The run is interrupted and can be resumed: a signal stopped it, or its process was killed.
        return exit_code_for(CANCELLED) if progress.fold.totals()["is_interrupted"] else 1
    match progress.final_event.type:
        case "gepa.run.finished":
            return 0
        case "gepa.run.cancelled":
            return exit_code_for(CANCELLED)
    return exit_code_for(str(progress.final_event.fields.get("error_code") or error_code))


@runs.command(short_help="Cancel a run of another process.")
@run_argument
@json_option
@click.option("--stop", is_flag=True, help="Stop the search and finish with the held-out evaluation instead.")
@reason_option
def cancel(run: RunSource, as_json: bool, stop: bool, reason: str) -> None:
    """Cancel a run of another process or of a service; stored answers are kept."""
    _send_control(run, "stop" if stop else "cancel", reason, as_json=as_json)


@runs.command(short_help="Pause a run of a service.")
@run_argument
@json_option
@reason_option
@click.option(
    "--timeout-seconds",
    type=click.IntRange(1, 14_400),
    metavar="SECONDS",
    help="Cancel the run if it is not resumed within this time. Default: the setting of the service, usually never.",
)
def pause(run: RunSource, as_json: bool, reason: str, timeout_seconds: int | None) -> None:
    """Pause a run of a service until it is resumed."""
    options = {} if timeout_seconds is None else {"timeout_seconds": timeout_seconds}
    _send_control(run, "pause", reason, as_json=as_json, **options)


@runs.command(short_help="Resume a paused run of a service.")
@run_argument
@json_option
@reason_option
def resume(run: RunSource, as_json: bool, reason: str) -> None:
    """Resume a paused run of a service."""
    _send_control(run, "resume", reason, as_json=as_json)


def _send_control(run: RunSource, kind: str, reason: str, *, as_json: bool, **options: object) -> None:
    answer = run.send_control(kind, reason, **options)
    if as_json:
        write_json(answer)
    else:
        why = f" ({answer['reason']})" if answer.get("reason") else ""
        write_text(f"{kind} of {answer['run_id']}: {answer['acknowledgement']}, state {answer['state']}{why}")


for command in (best, diff, apply, export, lineage, rows, compare, transcript, report, submit, stop, delete, prune):
    runs.add_command(command)
