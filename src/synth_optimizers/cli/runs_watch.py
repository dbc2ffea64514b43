"""`runs watch`: the view of a run that another process carries out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from synth_optimizers.cli.faults import exit_code_of
from synth_optimizers.cli.output import say, write_json
from synth_optimizers.cli.progress import Progress
from synth_optimizers.cli.runs_list import state_of
from synth_optimizers.cli.session import follow
from synth_optimizers.cli.summary import closing
from synth_optimizers.cli.view import view_for
from synth_optimizers.errors import SynthOptimizerError
from synth_optimizers.events import follow as read_feed
from synth_optimizers.status import RunStatus

__all__ = ["watch_run"]

PAUSE = 0.2
LOOK = 1.0


def watch_run(run_dir: Path, *, as_json: bool, quiet: bool) -> int:
    """Show a run until it ends or its process lets go of it; the exit code says how it ended."""
    watched = Watched(run_dir)
    status = watched.status
    progress = Progress(run_id=status.run_id)
    view = view_for(progress, status.limits, quiet=quiet, waiting=lambda: watched.status.rollouts_waiting)
    view.start()
    try:
        follow(read_feed(run_dir / "events.jsonl", watched.wait), progress, view, since=time.time())
    except KeyboardInterrupt:
        view.close([])
        say(f"no longer watching; the run goes on. Watch again: synth-optimizers runs watch {run_dir}")
        return 130
    except BaseException:
        view.close([])
        raise
    view.close(closing(progress, run_dir, time.time()))
    status = RunStatus.read(run_dir)
    if as_json:
        write_json({**status.to_dict(), "state": state_of(status)})
    return _exit_code(progress, status)


class Watched:
    """A look at a run now and then: its status, and whether somebody still works on it."""

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.run_dir = run_dir
        self.clock = clock
        self.status = RunStatus.read(run_dir)
        self.looked = clock()

    def wait(self, _last: int) -> bool:
        """Wait a moment; whether there may be more events after those that were there before."""
        if self.status.is_over or not self.status.is_held:
            return False
        time.sleep(PAUSE)
        if self.clock() - self.looked >= LOOK:
            self.looked = self.clock()
            try:
                self.status = RunStatus.read(self.run_dir)
            except SynthOptimizerError as error:
                # A busy database is asked again; one that is gone ends the watch.
                if not (self.run_dir / "workspace.sqlite").exists():
                    raise error from None
        return True


def _exit_code(progress: Progress, status: RunStatus) -> int:
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
