"""A run in a directory, whoever carries it out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synth_optimizers._synth_optimizers import ask_run, run_best, run_summary
from synth_optimizers.cli.faults import Refusal
from synth_optimizers.cli.summary import command_for, shown
from synth_optimizers.errors import SynthOptimizerError
from synth_optimizers.events import follow as read_feed
from synth_optimizers.status import RunStatus

if TYPE_CHECKING:
    from synth_optimizers.events import RunEvent

WORKSPACE = "workspace.sqlite"
FEED = "events.jsonl"
ARTIFACTS = (
    "result_manifest.json",
    "best_candidate.json",
    "candidate_registry.json",
    "frontier.json",
    FEED,
    "events.normalized.jsonl",
    "score_chart.svg",
    "cache_profile.json",
    WORKSPACE,
)
LEFT_OUT = ("request_cache.sqlite", "run.lock", "control.json")
"""Answers that are shared with other runs, and what processes say to each other."""
SUFFIXES = ("-wal", "-shm", "-journal")
PAUSE = 0.2
LOOK = 1.0


def state_of(status: RunStatus) -> str:
    """Return the state of a run; one that is not over and that nobody works on is interrupted."""
    if status.is_over or status.is_held:
        return status.state
    return "failed" if status.state == "failed" else "interrupted"


class LocalRun:
    """The run of a directory."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._watched: Watched | None = None

    @property
    def place(self) -> Path:
        """Its directory."""
        return self.run_dir

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.run_dir.resolve().name

    def identity(self) -> dict[str, str]:
        """Return its directory."""
        return {"run_dir": str(self.run_dir)}

    def status(self) -> RunStatus:
        """Read its status."""
        return RunStatus.read(self.run_dir)

    def state(self) -> str:
        """Return its state in one word."""
        return state_of(self.status())

    def notes(self) -> list[tuple[str, str]]:
        """Return nothing: the status tells it all."""
        return []

    def summary(self) -> dict[str, Any]:
        """Read its log."""
        return run_summary(self.run_dir)

    def best(self) -> dict[str, Any] | None:
        """Read its best candidate."""
        return run_best(self.run_dir) if (self.run_dir / WORKSPACE).exists() else None

    def artifacts(self) -> list[str]:
        """Return the files that are there."""
        return [name for name in ARTIFACTS if (self.run_dir / name).exists()]

    def located(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.run_dir / name)

    def files(self, scratch: Path) -> Iterator[tuple[str, tuple[Path, float]]]:
        """Yield every artifact in order; hidden files and links stay where they are."""
        from synth_optimizers.cli.database import copy_workspace

        for path in sorted(self.run_dir.rglob("*")):
            name = path.relative_to(self.run_dir)
            hidden = any(part.startswith(".") for part in name.parts)
            left_out = path.name in LEFT_OUT or path.name.endswith(SUFFIXES)
            if hidden or left_out or path.is_symlink() or not path.is_file():
                continue
            at = path.stat().st_mtime
            if name == Path(WORKSPACE):
                # Looking at a workspace changes its time; that of the feed is the time of the last event.
                feed = self.run_dir / FEED
                at = feed.stat().st_mtime if feed.exists() else at
                path = copy_workspace(path, scratch)
            yield name.as_posix(), (path, at)

    def follow(self) -> Iterator[RunEvent]:
        """Yield its events as they are stored."""
        self._watched = Watched(self.run_dir)
        return read_feed(self.run_dir / FEED, self._watched.wait)

    def waiting(self) -> int:
        """Return the answers that wait, as of the last look."""
        return 0 if self._watched is None else self._watched.status.rollouts_waiting

    def ask(self, kind: str, reason: str) -> dict[str, Any]:
        """Ask the process that carries it out."""
        if kind in ("pause", "resume"):
            raise Refusal(
                f"{shown(self.run_dir)} is a directory, and only runs of a service can be asked to {kind}",
                "Ctrl-C or SIGTERM interrupts a run of a directory, and "
                f"`{command_for('gepa', 'resume', self.run_dir)}` goes on with it.",
            )
        return ask_run(self.run_dir, kind, reason)


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
                if not (self.run_dir / WORKSPACE).exists():
                    raise error from None
        return True
