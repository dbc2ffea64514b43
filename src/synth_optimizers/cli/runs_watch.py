"""`runs watch`: the view of a run that another process or a service carries out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from synth_optimizers.cli.faults import exit_code_of
from synth_optimizers.cli.output import say, write_json
from synth_optimizers.cli.progress import Progress
from synth_optimizers.cli.session import follow
from synth_optimizers.cli.summary import closing
from synth_optimizers.cli.view import view_for

if TYPE_CHECKING:
    from synth_optimizers.cli.source import RunSource
    from synth_optimizers.status import RunStatus

__all__ = ["watch_run"]


def watch_run(run: RunSource, *, as_json: bool, quiet: bool) -> int:
    """Show a run until it ends or its process lets go of it; the exit code says how it ended."""
    status = run.status()
    progress = Progress(run_id=status.run_id)
    view = view_for(progress, status.limits, quiet=quiet, waiting=run.waiting)
    view.start()
    try:
        follow(run.follow(), progress, view, since=time.time())
    except KeyboardInterrupt:
        view.close([])
        say(f"no longer watching; the run goes on. Watch again: synth-optimizers runs watch {run.place}")
        return 130
    except BaseException:
        view.close([])
        raise
    status = run.status()
    has_story = progress.ending is not None or not status.is_over
    view.close(closing(progress, run.place, time.time()) if has_story else _untold(status))
    if as_json:
        write_json({**status.to_dict(), "state": run.state()})
    return _exit_code(progress, status)


def _untold(status: RunStatus) -> list[tuple[str, str]]:
    """Return the end of a run that has no event of it: it was over before it began."""
    lines = [("run", f"{status.run_id} {status.state}")]
    known = status.failure or {}
    return lines + [
        (label, str(known[name])) for label, name in (("error", "message"), ("hint", "hint")) if known.get(name)
    ]


def _exit_code(progress: Progress, status: RunStatus) -> int:
    if progress.ending is None and status.is_over:
        fallback = {"completed": 0, "cancelled": exit_code_of("synth_optimizer_cancelled")}.get(status.state, 1)
        return exit_code_of(str((status.failure or {}).get("error_code", "")), fallback)
    if progress.ending is None:
        # It can be resumed: let go of by a signal, or left by a process that was killed.
        return exit_code_of("synth_optimizer_cancelled") if progress.is_interrupted else 1
    match progress.ending.type:
        case "gepa.run.finished":
            return 0
        case "gepa.run.cancelled":
            return exit_code_of("synth_optimizer_cancelled")
    code = progress.ending.fields.get("error_code") or (status.failure or {}).get("error_code", "")
    return exit_code_of(str(code))
