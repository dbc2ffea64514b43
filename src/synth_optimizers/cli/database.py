"""A copy of a workspace that depends on nothing but what the run has stored."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from synth_optimizers.errors import OptimizerSqliteError

HEALTH = ("projection_freshness", "invariant_violations", "invariant_reports")
"""Tables that each `workspace status` writes anew."""

DAMAGED = (
    "The file is damaged or not a workspace: restore it from a copy, or save what is left with "
    "`sqlite3 workspace.sqlite .recover`; events.jsonl holds the log as well."
)
HINTS = {
    sqlite3.SQLITE_CORRUPT: DAMAGED,
    sqlite3.SQLITE_NOTADB: DAMAGED,
    sqlite3.SQLITE_FULL: "Free space on the disk of temporary files; TMPDIR names another one.",
    sqlite3.SQLITE_BUSY: "Another process holds the database: end it, or wait until it is done.",
    sqlite3.SQLITE_LOCKED: "Another process holds the database: end it, or wait until it is done.",
    sqlite3.SQLITE_CANTOPEN: "Check that the file exists and that you may read it.",
    sqlite3.SQLITE_PERM: "Check that the file exists and that you may read it.",
}


def copy_workspace(source: Path, scratch: Path) -> Path:
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
        raise _told(source, problem) from problem
    return packed


def _told(source: Path, problem: sqlite3.Error) -> OptimizerSqliteError:
    error = OptimizerSqliteError(f"{OptimizerSqliteError.error_code}: cannot read {source}: {problem}")
    # The low byte is the kind of the error, the rest a detail of it.
    error.hint = HINTS.get(getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_NOTADB) & 0xFF, DAMAGED)
    return error
