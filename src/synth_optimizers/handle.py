"""`RunHandle`: a run in the background. Wait for it, control it, read its status and its events."""

from __future__ import annotations

import atexit
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Protocol, Self

from synth_optimizers._synth_optimizers import NativeRun, run_best
from synth_optimizers.errors import SynthOptimizerError
from synth_optimizers.events import RunEvent, follow
from synth_optimizers.result import GepaRunResult
from synth_optimizers.status import RunStatus

if TYPE_CHECKING:
    from synth_optimizers.client import Best

_EXIT_TIMEOUT_SECONDS = 10.0
"""How many seconds the interpreter waits at exit for active runs to save."""


class Subscriber(Protocol):
    """Receives every event of a run, in order, on one thread.

    A subscriber that raises gets a warning and no more events; the run continues.
    """

    def on_event(self, event: RunEvent) -> None:
        """Process one event."""

    def close(self, result: GepaRunResult | None, error: BaseException | None) -> None:
        """Process the outcome of the run. Called exactly once, even if `RunHandle.wait` is never called."""


class RunHandle:
    """A run in the background of this process.

    As a context manager, it waits for the run at the end of the block. If the block raises, the run is interrupted and
    saved, and can be resumed.
    """

    def __init__(self, native: NativeRun, subscribers: Iterable[Subscriber] = ()) -> None:
        self._native = native
        receivers = list(subscribers)
        self._subscriber_thread = Thread(
            target=_deliver_events, args=(native, receivers), name="synth-optimizers-subscribers", daemon=True
        )
        if receivers:
            self._subscriber_thread.start()
        _drop_finished()
        _active_runs.add(_ActiveRun(native, self._subscriber_thread, os.getpid()))
        # A run that ends while nothing waits for it is dropped with its handle.
        weakref.finalize(self, _drop_finished).atexit = False

    def __repr__(self) -> str:
        return f"RunHandle(run_id={self.run_id!r}, run_dir={str(self.run_dir)!r})"

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._native.run_id

    @property
    def run_dir(self) -> Path:
        """The directory of the run."""
        return Path(self._native.run_dir)

    @property
    def is_done(self) -> bool:
        """Whether the run has finished or was interrupted."""
        return self._native.is_done

    def wait(self, timeout: float | None = None) -> GepaRunResult:
        """Wait for the end of the run and return the result.

        Raises the exception of the cause if the run failed, `CancelledError` if it was cancelled or interrupted, and
        `TimeoutError` if it is still active after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            return _result(self._native, timeout)
        finally:
            left = None if deadline is None else _seconds_until(deadline)
            if self.is_done and not _join(self._subscriber_thread, left):
                warnings.warn(f"subscribers of run {self.run_id} have not finished", stacklevel=2)
            _drop_finished()

    def wait_for_end(self, timeout: float | None = None) -> bool:
        """Wait for the end of the run, however it ends. Return whether it has ended within `timeout` seconds."""
        # No event has this sequence number.
        return self._native.wait_for_event(2**62, timeout)

    def interrupt(self, reason: str = "interrupted") -> bool:
        """Interrupt the run: it finishes calls in flight, saves and ends. It can be resumed.

        A second call does not wait for calls in flight. Return whether the run was still active.
        """
        return self._native.signal("interrupt", reason)

    def stop(self, reason: str = "stopped") -> bool:
        """End the search early, then do the held-out evaluation. Return whether the run was still active."""
        return self._native.signal("stop", reason)

    def cancel(self, reason: str = "cancelled") -> bool:
        """Cancel the run for good; results already computed are kept. Return whether the run was still active."""
        return self._native.signal("cancel", reason)

    def status(self) -> RunStatus:
        """Return the status of the run."""
        return RunStatus.read(self.run_dir)

    def best(self) -> Best | None:
        """Return the best candidate so far with its texts and scores; `None` before the first evaluation."""
        # The client takes a tenth of a second to import.
        from synth_optimizers.client.result_records import Best

        found = run_best(self.run_dir) if (self.run_dir / "workspace.sqlite").exists() else None
        return None if found is None else Best.of(found)

    def iter_events(self, from_sequence: int = 0) -> Iterator[RunEvent]:
        """Yield the events of the run from a sequence number on, as they are stored, until the run ends."""
        return _events(self._native, from_sequence)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.wait()
            return
        self.interrupt(f"the block ended with {type(error).__name__}")
        # The exception of the block takes precedence.
        with suppress(SynthOptimizerError):
            self.wait()


def _join(subscriber_thread: Thread, timeout: float | None) -> bool:
    """Wait until every subscriber has received everything, and return whether that happened in time."""
    if subscriber_thread.is_alive():
        subscriber_thread.join(timeout)
    return not subscriber_thread.is_alive()


def _deliver_events(native: NativeRun, subscribers: list[Subscriber]) -> None:
    """Deliver every event and the outcome to the subscribers; drop a subscriber that raises."""

    def notify(call: Callable[[Subscriber], None]) -> None:
        for subscriber in list(subscribers):
            try:
                call(subscriber)
            except Exception as problem:
                subscribers.remove(subscriber)
                warnings.warn(f"{type(subscriber).__name__} receives no further events: {problem!r}", stacklevel=2)

    result, error = None, None
    try:
        for event in _events(native):
            notify(methodcaller("on_event", event))
        result = _result(native, None)
    except Exception as problem:
        error = problem
    notify(methodcaller("close", result, error))


def _events(native: NativeRun, from_sequence: int = 0) -> Iterator[RunEvent]:
    def wait(last: int) -> bool:
        native.wait_for_event(last)
        return not native.is_done

    return follow(Path(native.run_dir), wait, from_sequence)


def _result(native: NativeRun, timeout: float | None) -> GepaRunResult:
    if native.wait(timeout) is None:
        raise TimeoutError(f"run {native.run_id} has not ended after {timeout} s")
    return GepaRunResult.from_run_dir(native.run_dir)


def _seconds_until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


@dataclass(frozen=True, slots=True, eq=False)
class _ActiveRun:
    """A run to save when the interpreter exits. It does not keep the handle, which the caller may drop at any time."""

    native: NativeRun
    subscriber_thread: Thread
    pid: int


_active_runs: set[_ActiveRun] = set()
"""The active runs of this process, and those whose subscribers have not finished."""


def _drop_finished() -> None:
    """Remove the finished runs, and after a fork the runs of the parent process."""
    for run in tuple(_active_runs):
        if run.pid != os.getpid() or (run.native.is_done and not run.subscriber_thread.is_alive()):
            _active_runs.discard(run)


@atexit.register
def _save_active_runs() -> None:
    """Save the active runs before the interpreter exits."""
    _drop_finished()
    active = tuple(_active_runs)
    for run in active:
        run.native.signal("interrupt", "the interpreter exits")
    deadline = time.monotonic() + _EXIT_TIMEOUT_SECONDS
    for run in active:
        # No event has this sequence number.
        run.native.wait_for_event(2**62, _seconds_until(deadline))
        _join(run.subscriber_thread, _seconds_until(deadline))
