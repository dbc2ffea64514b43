"""Remembers rollouts by id in an SQLite file, so that no rollout runs twice.

An id is committed before its function starts, and its record when it has ended. A killed process leaves ids that were
running: the function may have run, so they are not run again. The next start gives them a failed record that says so,
and the optimizer makes a new attempt under a new id.

The file stays below a size: when its records exceed the limit, the oldest records are dropped until three quarters are
left. Their ids stay, and are answered with a failed record that says so.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from typing import TYPE_CHECKING, NamedTuple

from .errors import BridgeError

if TYPE_CHECKING:
    import os

RUNNING, ENDED, LOST, DROPPED = "running", "ended", "lost", "dropped"
APPLICATION_ID = 0x53594252
SCHEMA_VERSION = 1
MAX_RECORD_BYTES = 2 * 1024**3
COMPRESS_FROM = 400
SCHEMA = """
CREATE TABLE IF NOT EXISTS rollouts (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    request_digest BLOB NOT NULL,
    task_id TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('running', 'ended', 'lost', 'dropped')),
    record BLOB,
    CHECK ((state = 'ended') = (record IS NOT NULL))
) STRICT
"""


class StoredRollout(NamedTuple):
    """What is known about a rollout. `record` is JSON and set if it has ended."""

    request_digest: bytes
    task_id: str
    state: str
    record: bytes | None


class Store:
    """The file, or a temporary one that ends with the process. Methods may be called from any thread."""

    def __init__(self, path: str | os.PathLike[str] | None, max_record_bytes: int = MAX_RECORD_BYTES) -> None:
        self.is_durable = path is not None
        self._lock = threading.Lock()
        self._max_bytes = max_record_bytes
        try:
            self._connection = sqlite3.connect(
                str(path) if path is not None else "", timeout=0, isolation_level=None, check_same_thread=False
            )
            self._open()
        except sqlite3.Error as error:
            raise _open_error(str(path), error) from error
        (self._bytes,) = self._connection.execute("SELECT coalesce(sum(length(record)), 0) FROM rollouts").fetchone()

    def _open(self) -> None:
        execute = self._connection.execute
        # The lock of the file ends with the process, however it ends. Forked children do not inherit it.
        execute("PRAGMA locking_mode = EXCLUSIVE")
        if self.is_durable:
            # A commit survives the end of the process without a sync of the disk.
            execute("PRAGMA journal_mode = WAL")
            execute("PRAGMA synchronous = NORMAL")
        else:
            execute("PRAGMA journal_mode = OFF")
            execute("PRAGMA synchronous = OFF")
        execute("BEGIN IMMEDIATE")
        (application,) = execute("PRAGMA application_id").fetchone()
        (version,) = execute("PRAGMA user_version").fetchone()
        (tables,) = execute("SELECT count(*) FROM sqlite_master").fetchone()
        if (application, version) != (APPLICATION_ID, SCHEMA_VERSION) and tables:
            raise sqlite3.DatabaseError("it is not a state file of this version of the bridge")
        execute(SCHEMA if sqlite3.sqlite_version_info >= (3, 37) else SCHEMA.replace(" STRICT", ""))
        execute(f"PRAGMA application_id = {APPLICATION_ID}")
        execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        execute("UPDATE rollouts SET state = 'lost' WHERE state = 'running'")
        execute("COMMIT")

    def begin(self, rollout_id: str, request_digest: bytes, task_id: str) -> None:
        """Remember that a rollout runs. Must return before its function is called."""
        with self._lock:
            self._connection.execute(
                "INSERT INTO rollouts (id, request_digest, task_id, state) VALUES (?, ?, ?, 'running')",
                (rollout_id, request_digest, task_id),
            )

    def end(self, rollout_id: str, request_digest: bytes, task_id: str, record: bytes) -> None:
        """Store the record of a rollout that has ended, whether it ever ran or not."""
        packed = zlib.compress(record, 1) if len(record) >= COMPRESS_FROM else record
        with self._lock:
            self._connection.execute(
                "INSERT INTO rollouts (id, request_digest, task_id, state, record) VALUES (?, ?, ?, 'ended', ?)"
                " ON CONFLICT (id) DO UPDATE SET state = 'ended', record = excluded.record",
                (rollout_id, request_digest, task_id, packed),
            )
            self._bytes += len(packed)
            if self._bytes > self._max_bytes:
                self._drop_oldest()

    def forget(self, rollout_id: str) -> None:
        """Forget a rollout that runs, so that the same id may run again."""
        with self._lock:
            self._connection.execute("DELETE FROM rollouts WHERE id = ? AND state = 'running'", (rollout_id,))

    def find(self, rollout_id: str) -> StoredRollout | None:
        """Return what is known about a rollout."""
        with self._lock:
            found = self._connection.execute(
                "SELECT request_digest, task_id, state, record FROM rollouts WHERE id = ?", (rollout_id,)
            ).fetchone()
        if found is None:
            return None
        digest, task_id, state, record = found
        # JSON begins with a brace, and a compressed record does not.
        if record is not None and not record.startswith(b"{"):
            record = zlib.decompress(record)
        return StoredRollout(digest, task_id, state, record)

    def counts(self) -> dict[str, int]:
        """Return the number of rollouts by state."""
        with self._lock:
            return dict(self._connection.execute("SELECT state, count(*) FROM rollouts GROUP BY state").fetchall())

    def _drop_oldest(self) -> None:
        cursor = self._connection.execute(
            "SELECT number, length(record) FROM rollouts WHERE state = 'ended' ORDER BY number"
        )
        dropped = []
        for number, size in cursor:
            if self._bytes <= self._max_bytes * 3 // 4:
                break
            self._bytes -= size
            dropped.append((number,))
        cursor.close()
        self._connection.execute("BEGIN")
        self._connection.executemany("UPDATE rollouts SET state = 'dropped', record = NULL WHERE number = ?", dropped)
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file. Rollouts that still run stay remembered as running."""
        with self._lock:
            self._connection.close()


def _open_error(path: str, error: sqlite3.Error) -> BridgeError:
    if "locked" in str(error):
        return BridgeError(
            "state_in_use",
            f"another bridge uses the state file {path}",
            "End that bridge first, or name another file with --state.",
        )
    return BridgeError(
        "state_invalid", f"the state file {path} cannot be used: {error}", "Name another file with --state."
    )
