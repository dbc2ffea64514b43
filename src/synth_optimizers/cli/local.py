"""A run in a directory, whoever carries it out."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from synth_optimizers._synth_optimizers import ask_run, run_best, run_summary
from synth_optimizers.cli.faults import Refusal
from synth_optimizers.cli.session import now_and_then
from synth_optimizers.cli.source import state_of
from synth_optimizers.cli.summary import command_for, shown
from synth_optimizers.errors import OptimizerSqliteError, SynthOptimizerError, error_of
from synth_optimizers.events import RunEvent
from synth_optimizers.events import follow as read_feed
from synth_optimizers.status import RunStatus

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
HEALTH = ("projection_freshness", "invariant_violations", "invariant_reports")
"""Tables that each `workspace status` writes anew."""

DAMAGED = (
    "The file is damaged or not a workspace: restore it from a copy, or save what is left with "
    "`sqlite3 workspace.sqlite .recover`; events.jsonl holds the log as well."
)
HINTS = {
    sqlite3.SQLITE_FULL: "Free space on the disk of temporary files; TMPDIR names another one.",
    sqlite3.SQLITE_BUSY: "Another process holds the database: end it, or wait until it is done.",
    sqlite3.SQLITE_LOCKED: "Another process holds the database: end it, or wait until it is done.",
    sqlite3.SQLITE_CANTOPEN: "Check that the file exists and that you may read it.",
    sqlite3.SQLITE_PERM: "Check that the file exists and that you may read it.",
}


class LocalRun:
    """The run of a directory."""

    kind = "run_dir"

    def __init__(self, run_dir: Path) -> None:
        self.place = run_dir
        self.name = run_dir.resolve().name
        self.waiting = now_and_then(lambda: self.status().rollouts_waiting, LOOK)
        """The answers that wait for their turn; looked for again and again while it is followed."""

    def status(self) -> RunStatus:
        """Read its status."""
        return RunStatus.read(self.place)

    def state(self) -> str:
        """Return its state in one word."""
        return state_of(self.status())

    def notes(self) -> list[tuple[str, str]]:
        """Return nothing: the status tells it all."""
        return []

    def summary(self) -> dict[str, Any]:
        """Read its log."""
        return run_summary(self.place)

    def best(self) -> dict[str, Any] | None:
        """Read its best candidate."""
        return run_best(self.place) if (self.place / WORKSPACE).exists() else None

    def artifacts(self) -> list[str]:
        """Return the files that are there."""
        return [name for name in ARTIFACTS if (self.place / name).exists()]

    def located(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.place / name)

    def files(self, scratch: Path) -> Iterator[tuple[str, tuple[Path, float]]]:
        """Yield every artifact in order; hidden files and links stay where they are."""
        for path in sorted(self.place.rglob("*")):
            name = path.relative_to(self.place)
            hidden = any(part.startswith(".") for part in name.parts)
            left_out = path.name in LEFT_OUT or path.name.endswith(SUFFIXES)
            if hidden or left_out or path.is_symlink() or not path.is_file():
                continue
            at = path.stat().st_mtime
            if name == Path(WORKSPACE):
                # Looking at a workspace changes its time; that of the feed is the time of the last event.
                feed = self.place / FEED
                at = feed.stat().st_mtime if feed.exists() else at
                path = _copy_workspace(path, scratch)
            yield name.as_posix(), (path, at)

    def follow(self) -> Iterator[RunEvent]:
        """Yield its events as they are stored, as long as somebody works on it."""
        status, looked = self.status(), time.monotonic()

        def wait(_last: int) -> bool:
            nonlocal status, looked
            if status.is_over or not status.is_held:
                return False
            time.sleep(PAUSE)
            if time.monotonic() - looked >= LOOK:
                looked = time.monotonic()
                try:
                    status = self.status()
                except SynthOptimizerError:
                    # A busy database is asked again; one that is gone ends the watch.
                    if not (self.place / WORKSPACE).exists():
                        raise
            return True

        return read_feed(self.place / FEED, wait)

    def ask(self, kind: str, reason: str) -> dict[str, Any]:
        """Ask the process that carries it out."""
        if kind in ("pause", "resume"):
            raise Refusal(
                f"{shown(self.place)} is a directory, and only runs of a service can be asked to {kind}",
                "Ctrl-C or SIGTERM interrupts a run of a directory, and "
                f"`{command_for('gepa', 'resume', self.place)}` goes on with it.",
            )
        return ask_run(self.place, kind, reason)


def _copy_workspace(source: Path, scratch: Path) -> Path:
    """Copy a database at one moment of it, while another process may write; its health is left out.

    The same rows make the same bytes: the copy is packed anew.
    """
    moment, packed = scratch / "moment.sqlite", scratch / source.name
    address = f"{source.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True)) as live, closing(sqlite3.connect(moment)) as copy:
            live.backup(copy)
            known = {name for (name,) in copy.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            for table in HEALTH:
                if table in known:
                    copy.execute(f"DELETE FROM {table}")  # noqa: S608 (names of our own)
            copy.commit()
            copy.execute("VACUUM INTO ?", (str(packed),))
    except sqlite3.Error as problem:
        # The low byte is the kind of the error, the rest a detail of it.
        hint = HINTS.get(getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_NOTADB) & 0xFF, DAMAGED)
        raise error_of(OptimizerSqliteError, f"cannot read {source}: {problem}", hint) from problem
    return packed
