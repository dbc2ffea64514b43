"""`synth-optimizers gepa`: runs an optimization in the foreground, and prints the schema of the configuration."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import click

from synth_optimizers import config_schema
from synth_optimizers.cli.check import check, load, show_plan
from synth_optimizers.cli.errors import error_report, print_error
from synth_optimizers.cli.options import (
    complete_run,
    config_option,
    json_option,
    log_options,
    quiet_option,
    root_option,
    set_option,
    track_option,
)
from synth_optimizers.cli.output import write_json, write_text
from synth_optimizers.cli.service import service
from synth_optimizers.cli.session import (
    CLOCK_RESOLUTION_SECONDS,
    LogFeed,
    SignalForwarder,
    cached_poll,
    follow,
    print_warnings,
    signal_handlers,
)
from synth_optimizers.cli.source import find_run
from synth_optimizers.cli.summary import APPLY, BEST_TO_FILE, summary_lines
from synth_optimizers.cli.view import Progress, view_for
from synth_optimizers.errors import CancelledError, ContainerContractError, SynthOptimizerError
from synth_optimizers.handle import RunHandle, Subscriber
from synth_optimizers.result import GepaRunResult
from synth_optimizers.run import GepaRun


@click.group()
def gepa() -> None:
    """Run, check and resume optimizations."""


@gepa.command("run", short_help="Start a run, or resume it.")
@config_option
@set_option
@json_option
@quiet_option
@click.option("--dry-run", is_flag=True, help="Show the plan and its maximum cost; send nothing.")
@track_option
@log_options("warn")
def run_(
    config: Path, overrides: tuple[str, ...], as_json: bool, quiet: bool, dry_run: bool, trackers: tuple[str, ...]
) -> int:
    """Start a run, or resume it where it was interrupted.

    The first Ctrl-C waits for calls in flight and saves the run; the second stops at once. The same command resumes.
    """
    run = load(config, overrides)
    if not dry_run:
        return execute_run(run, trackers, as_json=as_json, quiet=quiet)
    if not quiet:
        print_warnings(run.config.warnings)
    return show_plan(run, as_json=as_json)


@gepa.command(short_help="Resume an interrupted run.")
@click.argument("run_dir", metavar="RUN_DIR", shell_complete=complete_run)
@root_option
@json_option
@quiet_option
@track_option
@log_options("warn")
def resume(run_dir: str, root: Path, as_json: bool, quiet: bool, trackers: tuple[str, ...]) -> int:
    """Resume an interrupted run with its stored configuration."""
    return execute_run(GepaRun.from_run_dir(find_run(run_dir, root)), trackers, as_json=as_json, quiet=quiet)


@gepa.command()
@json_option
def schema(as_json: bool) -> None:  # noqa: ARG001 (the output is always JSON)
    """Write the JSON Schema of the configuration file, for editors."""
    write_json(config_schema())


def execute_run(
    run: GepaRun,
    trackers: Sequence[str],
    *,
    as_json: bool,
    quiet: bool,
    after: Callable[[Path], None] | None = None,
    container_advice: str | None = None,
) -> int:
    """Execute a run, show its progress, and return the exit code.

    `after` shows more of a completed run to people, and the next command. `container_advice` is added to the hint of a
    failure of the container.
    """
    subscribers = tracker_subscribers(trackers, run)
    if not quiet:
        print_warnings(run.config.warnings)
    begun = time.time()
    settings = run.config.to_dict()
    progress = Progress(container_url=settings["container"]["url"])
    next_command = APPLY if settings["candidate"].get("sources") else BEST_TO_FILE
    is_continued = after is not None and not as_json
    error: SynthOptimizerError | None = None
    handle: RunHandle | None = None
    result: GepaRunResult | None = None
    signals = SignalForwarder()
    with signal_handlers(signals.receive):
        waiting = cached_poll(lambda: handle.status().rollouts_waiting if handle else None, 1.0)
        view = view_for(progress, settings["gepa"], quiet=quiet, waiting=waiting)
        handle = run.start(subscribers=subscribers)
        progress.run_id = handle.run_id
        signals.attach(handle.interrupt, view)
        try:
            view.start()
            feed = LogFeed(handle.run_dir, lambda seconds: not handle.wait_for_end(seconds))
            follow(feed, progress, view, since=begun, poll_signals=signals.poll_signals)
            result = handle.wait()
        except SynthOptimizerError as problem:
            error = problem
        finally:
            # A run that was refused has only events of an earlier process.
            has_events = progress.latest >= begun - CLOCK_RESOLUTION_SECONDS or (error is None and progress.events > 0)
            sentence = result.claim.sentence if result is not None and result.claim is not None else None
            following = None if is_continued else next_command
            lines = summary_lines(progress, handle.run_dir, time.time(), following, sentence)
            view.close(lines if has_events else [])
    if error is not None:
        if container_advice is not None and isinstance(error, ContainerContractError):
            error.hint = f"{error.hint} {container_advice}"
        return _report_failure(error, signals, as_json=as_json, summary_shown=has_events and not quiet)
    if as_json and result is not None:
        write_json(result.to_dict())
    elif after is not None and not quiet:
        after(handle.run_dir)
    else:
        write_text(f"artifacts: {handle.run_dir}")
    return 0


def tracker_subscribers(names: Sequence[str], run: GepaRun) -> list[Subscriber]:
    """Return the subscribers named by `--track`. Trackers that store a configuration get the one of the run."""
    if not names:
        return []
    # The tracking packages are slow to import.
    from synth_optimizers.tracking import subscriber

    config = {"config": run.config.to_dict()}
    return [subscriber(name, **({} if name == "otel" else config)) for name in names]


def _report_failure(error: SynthOptimizerError, signals: SignalForwarder, *, as_json: bool, summary_shown: bool) -> int:
    report = error_report(error)
    by_signal = signals.exit_code if isinstance(error, CancelledError) else None
    # After Ctrl-C, the summary has already said how to resume.
    if by_signal is None or as_json or not summary_shown:
        # The exit code reports the failure even when stdout is closed.
        with suppress(click.exceptions.Exit, OSError):
            print_error(report, as_json=as_json)
    return report.exit_code if by_signal is None else by_signal


gepa.add_command(check)
gepa.add_command(service)
