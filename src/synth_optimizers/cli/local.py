"""A run in a local directory, executed by this process, by another one, or by none."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synth_optimizers._synth_optimizers import (
    ask_run,
    run_best,
    run_compare,
    run_lineage,
    run_report,
    run_rows,
    run_summary,
    run_turn,
    run_turns,
)
from synth_optimizers.cli.errors import CommandError
from synth_optimizers.cli.session import LogFeed, cached_poll
from synth_optimizers.cli.source import local_state
from synth_optimizers.cli.summary import command_for, display_path
from synth_optimizers.errors import OptimizerSqliteError, SynthOptimizerError, error_of
from synth_optimizers.status import RunStatus

if TYPE_CHECKING:
    from synth_optimizers.cli.source import RunSource

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
    "lineage.svg",
    "report.html",
    "cache_profile.json",
    WORKSPACE,
)
EXCLUDED_FILES = ("request_cache.sqlite", "run.lock", "control.json")
"""Files that an export leaves out: the cache is shared with other runs; the others are used between processes."""
SQLITE_SIDECAR_SUFFIXES = ("-wal", "-shm", "-journal")
STATUS_POLL_SECONDS = 1.0
HEALTH_TABLES = ("projection_freshness", "invariant_violations", "invariant_reports")
"""Tables that every `workspace status` rewrites."""

DAMAGED_HINT = (
    "Restore the file from a copy, or recover its rows with "
    "`sqlite3 workspace.sqlite .recover`; events.jsonl holds the log as well."
)
SQLITE_HINTS = {
    sqlite3.SQLITE_FULL: "Free space on the disk of temporary files, or set TMPDIR to another directory.",
    sqlite3.SQLITE_BUSY: "Wait for the process that locks the database, or end it.",
    sqlite3.SQLITE_LOCKED: "Wait for the process that locks the database, or end it.",
    sqlite3.SQLITE_CANTOPEN: "Check that the file exists and is readable.",
    sqlite3.SQLITE_PERM: "Check that the file exists and is readable.",
}


class LocalRun:
    """A run in a directory."""

    kind = "run_dir"

    def __init__(self, run_dir: Path) -> None:
        self.place = run_dir
        self.name = run_dir.resolve().name
        self.waiting = cached_poll(lambda: self.status().rollouts_waiting, STATUS_POLL_SECONDS)
        """The number of answers that wait to become events, read again at each poll interval."""

    def status(self) -> RunStatus:
        """Read the status of the run."""
        return RunStatus.read(self.place)

    def state(self) -> str:
        """Return the state of the run in one word."""
        return local_state(self.status())

    def notes(self) -> list[tuple[str, str]]:
        """Return no notes: the status of a local run is complete."""
        return []

    def summary(self) -> dict[str, Any]:
        """Read the summary from the log of the run."""
        return run_summary(self.place)

    def best(self) -> dict[str, Any] | None:
        """Read the best candidate."""
        return run_best(self.place) if (self.place / WORKSPACE).exists() else None

    def lineage(self) -> dict[str, Any]:
        """Read all candidates as a tree."""
        return run_lineage(self.place)

    def report(self) -> str:
        """Return the report as one HTML file."""
        return run_report(self.place)

    def rows(self, **query: object) -> dict[str, Any]:
        """Read a window of the table of rows and candidates."""
        return run_rows(self.place, {name: value for name, value in query.items() if value is not None})

    def turns(self) -> list[dict[str, Any]]:
        """Read all proposer turns."""
        found: list[dict[str, Any]] = []
        cursor = None
        while True:
            page = run_turns(self.place, limit=200, cursor=cursor)
            found += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    def turn(self, turn: str) -> dict[str, Any]:
        """Read one proposer turn with its transcript."""
        return run_turn(self.place, turn)

    def compare(
        self, other: RunSource, *, candidate_id: str | None = None, other_candidate_id: str | None = None
    ) -> dict[str, Any]:
        """Compare this run with another one in a directory."""
        names = {"candidate_id": candidate_id, "other_candidate_id": other_candidate_id}
        return run_compare(self.place, other.place, **names)

    def check_deletable(self) -> None:
        """Refuse to delete a run that a process executes."""
        status = self.status()
        if status.is_held:
            hint = f"`{command_for('runs', 'cancel', self.place)}` ends it."
            raise CommandError(f"{display_path(self.place)} is executed by {status.holder}", hint)

    def delete(self) -> None:
        """Delete the directory of the run, and the link `latest` if it names this run."""
        place = self.place.resolve()
        latest = place.parent / "latest"
        is_latest = latest.is_symlink() and latest.resolve() == place
        shutil.rmtree(place)
        if is_latest:
            latest.unlink(missing_ok=True)

    def artifacts(self) -> list[str]:
        """Return the artifacts that exist."""
        return [name for name in ARTIFACTS if (self.place / name).exists()]

    def artifact_location(self, name: str) -> str:
        """Return the path of an artifact."""
        return str(self.place / name)

    def files(self, scratch: Path) -> Iterator[tuple[str, tuple[Path, float]]]:
        """Yield every artifact in order, without hidden files and links."""
        for path in sorted(self.place.rglob("*")):
            name = path.relative_to(self.place)
            hidden = any(part.startswith(".") for part in name.parts)
            left_out = path.name in EXCLUDED_FILES or path.name.endswith(SQLITE_SIDECAR_SUFFIXES)
            if hidden or left_out or path.is_symlink() or not path.is_file():
                continue
            at = path.stat().st_mtime
            if name == Path(WORKSPACE):
                # Reading a workspace changes its modification time, so the export uses that of the feed: the last
                # event.
                feed = self.place / FEED
                at = feed.stat().st_mtime if feed.exists() else at
                path = _copy_workspace(path, scratch)
            yield name.as_posix(), (path, at)

    def feed(self) -> LogFeed:
        """Return the events as they are stored, as long as a process works on the run."""
        status, polled_at = self.status(), time.monotonic()

        def wait(seconds: float) -> bool:
            nonlocal status, polled_at
            if status.is_terminal or not status.is_held:
                return False
            time.sleep(seconds)
            if time.monotonic() - polled_at >= STATUS_POLL_SECONDS:
                polled_at = time.monotonic()
                try:
                    status = self.status()
                except SynthOptimizerError:
                    # A busy database is polled again; a missing one ends the watch.
                    if not (self.place / WORKSPACE).exists():
                        raise
            return True

        return LogFeed(self.place, wait)

    def send_control(self, kind: str, reason: str, **_options: object) -> dict[str, Any]:
        """Send a control request to the process that executes the run."""
        if kind in ("pause", "resume"):
            raise CommandError(
                f"{display_path(self.place)} is a directory, and `{kind}` works for runs of a service only",
                f"Interrupt the run with Ctrl-C or SIGTERM; `{command_for('gepa', 'resume', self.place)}` resumes it.",
            )
        return ask_run(self.place, kind, reason)


def _copy_workspace(source: Path, scratch: Path) -> Path:
    """Copy a consistent snapshot of a database that another process may be writing, without its health tables.

    The copy is vacuumed, so that the same rows always produce the same bytes.
    """
    moment, packed = scratch / "moment.sqlite", scratch / source.name
    address = f"{source.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True)) as live, closing(sqlite3.connect(moment)) as copy:
            live.backup(copy)
            known = {name for (name,) in copy.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            for table in HEALTH_TABLES:
                if table in known:
                    copy.execute(f"DELETE FROM {table}")  # noqa: S608 (constant table names)
            copy.commit()
            copy.execute("VACUUM INTO ?", (str(packed),))
    except sqlite3.Error as problem:
        # The low byte is the primary error code of SQLite; the rest extends it.
        hint = SQLITE_HINTS.get(getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_NOTADB) & 0xFF, DAMAGED_HINT)
        raise error_of(OptimizerSqliteError, f"cannot read {source}: {problem}", hint) from problem
    return packed
