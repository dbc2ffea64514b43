"""Runs rollouts: at most `jobs` at once, every id once, each with a deadline.

All bookkeeping happens on the event loop of the server. Threads call the function and write to the store. A rollout is
ended once: by the thread that has its result, by a timeout or by a termination, whichever claims it first.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import queue
import sqlite3
import sys
import threading
import time
from collections import deque
from typing import Any

from .calls import Call, Caller
from .function import Failure
from .record import encode, ended_record, interrupted_record, now, stored_record
from .store import RUNNING, Store
from .values import canonical, dump

QUEUE_PER_JOB = 16
MIN_QUEUE = 256
STUCK_PER_JOB = 4
MIN_STUCK = 16
MAX_CAUSES = 1000
MAX_UNSAVED = 1000


class RefusedError(Exception):
    """A request that is answered with an HTTP error."""

    def __init__(self, status: int, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.retry_after = retry_after


class Rollout:
    """A rollout that is queued or runs."""

    __slots__ = (
        "call",
        "claim",
        "created_at",
        "digest",
        "done",
        "id",
        "is_awaited",
        "record",
        "refused",
        "task_id",
        "timer",
        "was_run",
    )

    def __init__(self, rollout_id: str, digest: bytes, task_id: str, call: Call, done: asyncio.Future[None]) -> None:
        self.id = rollout_id
        self.digest = digest
        self.task_id = task_id
        self.call = call
        self.created_at = now()
        self.done = done
        self.claim = threading.Lock()
        """Acquired once, by the one that ends the rollout."""
        self.is_awaited = False
        """Whether a sync request waits for the answer."""
        self.record: bytes | None = None
        self.refused: RefusedError | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.was_run = False


class Rollouts:
    """The rollouts of a server."""

    def __init__(self, name: str, caller: Caller, store: Store, jobs: int, timeout: float) -> None:
        self.jobs = jobs
        self._name = name
        self._caller = caller
        self._store = store
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._active: dict[str, Rollout] = {}
        self._waiting: deque[Rollout] = deque()
        self._running = 0
        self._handoff: queue.SimpleQueue[Rollout | None] = queue.SimpleQueue()
        self._causes: set[str] = set()
        self._stuck = 0
        self._threads = 0
        """Threads that run or wait for rollouts, without those that hang in a call that was given up."""
        self._unsaved: dict[str, tuple[bytes, bytes]] = {}
        """Digests and records that the store could not take."""

    def submit(
        self, rollout_id: str, digest: bytes, task_id: str, call: Call, *, is_awaited: bool = False
    ) -> Rollout | bytes:
        """Return the record of a known id, the rollout that runs under it, or a new rollout.

        `is_awaited` says that a sync request waits for the answer.
        """
        known = self._active.get(rollout_id)
        if known is not None:
            if known.digest != digest:
                raise _conflict(rollout_id)
            known.is_awaited = known.is_awaited or is_awaited
            return known
        unsaved = self._unsaved.get(rollout_id)
        stored = self._store.find(rollout_id)
        if unsaved is not None or stored is not None:
            known_digest = unsaved[0] if unsaved is not None else stored.request_digest if stored else b""
            if known_digest != digest:
                raise _conflict(rollout_id)
            return self._stored(rollout_id) or b"{}"
        if len(self._waiting) >= max(MIN_QUEUE, QUEUE_PER_JOB * self.jobs):
            raise RefusedError(429, f"{len(self._waiting)} rollouts wait for {self.jobs} jobs", retry_after=1)
        rollout = Rollout(rollout_id, digest, task_id, call, self._loop.create_future())
        rollout.is_awaited = is_awaited
        if self._stuck >= max(MIN_STUCK, STUCK_PER_JOB * self.jobs):
            reason = f"{self._stuck} calls of {self._name} still hang; start the bridge with --processes to end them"
            self._end_unrun(rollout, "failed", reason)
            return rollout.record or b"{}"
        self._active[rollout_id] = rollout
        self._waiting.append(rollout)
        self._start_waiting()
        return rollout

    def find(self, rollout_id: str) -> Rollout | bytes | None:
        """Return a rollout that has not ended, the record of one that has, or `None`."""
        active = self._active.get(rollout_id)
        if active is not None:
            return active.record or active
        return self._stored(rollout_id)

    def _stored(self, rollout_id: str) -> bytes | None:
        if rollout_id in self._unsaved:
            return self._unsaved[rollout_id][1]
        stored = self._store.find(rollout_id)
        return stored_record(rollout_id, stored) if stored is not None else None

    def terminate(self, rollout_id: str, reason: str) -> bytes | None:
        """End a rollout and return its record, or the record of one that has ended."""
        rollout = self._active.get(rollout_id)
        if rollout is None:
            found = self.find(rollout_id)
            return found if isinstance(found, bytes) else None
        detail = f"terminated: {reason}" if reason else "terminated"
        if rollout.was_run:
            self._interrupt(rollout, "cancelled", detail)
        else:
            self._waiting.remove(rollout)
            self._end_unrun(rollout, "cancelled", detail)
        # Another one may have claimed it just now: its record follows.
        return rollout.record or encode(interrupted_record(rollout_id, rollout.task_id, "cancelled", detail))

    def counts(self) -> dict[str, int]:
        """Return how many rollouts wait and run."""
        return {"waiting": len(self._waiting), "running": self._running, "stuck": self._stuck}

    def close(self) -> None:
        """End the threads that wait for rollouts."""
        for _ in range(self._threads):
            self._handoff.put(None)
        self._caller.close()

    def _start_waiting(self) -> None:
        while self._waiting and self._running < self.jobs:
            rollout = self._waiting.popleft()
            self._running += 1
            rollout.was_run = True
            if self._threads < self._running:
                self._start_thread()
            if self._timeout > 0:
                rollout.timer = self._loop.call_later(self._timeout, self._expire, rollout)
            self._handoff.put(rollout)

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name="bridge-rollout", daemon=True).start()

    def _work(self) -> None:
        """Run rollouts in this thread until one of them was abandoned."""
        while True:
            rollout = self._handoff.get()
            if rollout is None:
                self._caller.recover()
                return
            if not self._run(rollout):
                return

    def _run(self, rollout: Rollout) -> bool:
        """Run one rollout. Returns whether the thread is still counted."""
        began = time.monotonic()
        try:
            self._store.begin(rollout.id, rollout.digest, rollout.task_id)
        except sqlite3.Error as error:
            # What cannot be remembered must not run.
            if rollout.claim.acquire(blocking=False):
                rollout.refused = RefusedError(503, f"the state file cannot be written: {error}", retry_after=5)
                self._tell(rollout)
            return True
        outcome = self._caller.run(rollout.call)
        if not rollout.claim.acquire(blocking=False):
            # The call was given up. A thread that could not be called back is no longer counted.
            self._caller.recover()
            if not self._caller.can_interrupt:
                self._call_loop(self._unstick)
            return self._caller.can_interrupt
        if self._refuse(rollout, outcome.failure):
            self._tell(rollout)
            return True
        record = ended_record(rollout.id, rollout.task_id, outcome, rollout.created_at, time.monotonic() - began)
        self._report(rollout, outcome.failure)
        self._end(rollout, encode(record))
        self._tell(rollout)
        return True

    def _refuse(self, rollout: Rollout, failure: Failure | None) -> bool:
        """Refuse a rollout whose function asks for a later call. Returns whether that was possible.

        An async rollout was accepted already, so it fails instead.
        """
        if failure is None or failure.retry_after is None or not rollout.is_awaited:
            return False
        try:
            self._store.forget(rollout.id)
        except sqlite3.Error:
            return False
        self._report(rollout, failure)
        rollout.refused = RefusedError(503, failure.message, retry_after=failure.retry_after)
        return True

    def _unstick(self) -> None:
        self._stuck -= 1

    def _report(self, rollout: Rollout, failure: Failure | None) -> None:
        """Print the traceback of a failure, once for each cause."""
        if failure is None or failure.message in self._causes or len(self._causes) >= MAX_CAUSES:
            return
        self._causes.add(failure.message)
        shown = f"{failure.traceback.rstrip()}\n" if failure.traceback else ""
        _print(f"{shown}rollout of row {rollout.task_id} failed: {failure.message}")

    def _end(self, rollout: Rollout, record: bytes) -> None:
        rollout.record = record
        try:
            self._store.end(rollout.id, rollout.digest, rollout.task_id, record)
        except sqlite3.Error as error:
            _print(f"the record of {rollout.id} cannot be stored: {error}")
            if len(self._unsaved) < MAX_UNSAVED:
                self._unsaved[rollout.id] = (rollout.digest, record)

    def _end_unrun(self, rollout: Rollout, status: str, reason: str) -> None:
        rollout.claim.acquire(blocking=False)
        self._end(rollout, encode(interrupted_record(rollout.id, rollout.task_id, status, reason)))
        self._forget(rollout)

    def _tell(self, rollout: Rollout) -> None:
        self._call_loop(self._ended, rollout)

    def _call_loop(self, function: Any, *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The server has ended, and the record is in the store.
            return

    def _ended(self, rollout: Rollout) -> None:
        self._running -= 1
        self._forget(rollout)
        self._start_waiting()

    def _forget(self, rollout: Rollout) -> None:
        self._active.pop(rollout.id, None)
        if rollout.timer is not None:
            rollout.timer.cancel()
        if not rollout.done.done():
            rollout.done.set_result(None)

    def _expire(self, rollout: Rollout) -> None:
        hint = "" if self._stuck < self.jobs else "; calls that hang can only be ended with --processes"
        self._interrupt(rollout, "failed", f"{self._name} did not return within {self._timeout:g} s (--timeout){hint}")

    def _interrupt(self, rollout: Rollout, status: str, reason: str) -> None:
        """End a rollout that runs, without its result."""
        if not rollout.claim.acquire(blocking=False):
            return
        if status == "failed":
            self._report(rollout, Failure(reason))
        record = interrupted_record(rollout.id, rollout.task_id, status, reason, rollout.created_at)
        self._end(rollout, encode(record))
        if self._caller.can_interrupt:
            self._caller.interrupt(rollout.call)
        else:
            # The thread stays in the function; another one takes its place.
            self._stuck += 1
            self._threads -= 1
        self._ended(rollout)


def request_digest(request: dict[str, Any]) -> bytes:
    """Return a digest of everything in a request that can change its answer."""
    parts = {key: request.get(key) for key in ("task_id", "candidate", "policy", "task")}
    return hashlib.sha256(canonical(parts).encode("utf-8", "surrogatepass")).digest()


def state_of(rollout_id: str, found: Rollout | bytes) -> bytes:
    """Return the short state of a rollout."""
    if isinstance(found, Rollout):
        return dump({"rollout_id": rollout_id, "status": RUNNING if found.was_run else "queued"}).encode()
    record = json.loads(found)
    state = {key: record[key] for key in ("rollout_id", "status", "status_detail") if key in record}
    return dump(state).encode()


def _conflict(rollout_id: str) -> RefusedError:
    return RefusedError(409, f"rollout_identity_conflict: {rollout_id} was received with another body")


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
