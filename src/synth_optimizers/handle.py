"""A run under way: wait for it, steer it, watch it, hear of its events."""

from __future__ import annotations

import atexit
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from operator import methodcaller
from pathlib import Path
from threading import Thread
from typing import Any, Protocol, Self

from synth_optimizers._synth_optimizers import NativeRun, run_best
from synth_optimizers.errors import SynthOptimizerError
from synth_optimizers.events import RunEvent, follow
from synth_optimizers.result import GepaRunResult
from synth_optimizers.status import RunStatus

_GOODBYE_SECONDS = 10.0
"""How long the end of the interpreter waits for runs to save themselves."""


class Subscriber(Protocol):
    """Hears of every event of a run, in order, from one thread.

    A subscriber that raises is warned about and hears nothing more; the run goes on.
    """

    def on_event(self, event: RunEvent) -> None:
        """Take in one event."""

    def close(self, result: GepaRunResult | None, error: BaseException | None) -> None:
        """Take in how the run ended. Called once, also when nobody waits for the run."""


class RunHandle:
    """A run that goes on in the background of this process.

    As a context manager it waits for the run at the end of the block; when the block ends with an exception, the run is
    interrupted, saved, and can be resumed.
    """

    def __init__(self, native: NativeRun, subscribers: Iterable[Subscriber] = ()) -> None:
        self._native = native
        heard = list(subscribers)
        self._audience = Thread(target=_serve, args=(native, heard), name="synth-optimizers-subscribers", daemon=True)
        if heard:
            self._audience.start()
        self._pid = os.getpid()
        _forget_ended()
        _under_way.add(self)

    def __repr__(self) -> str:
        return f"RunHandle(run_id={self.run_id!r}, run_dir={str(self.run_dir)!r})"

    @property
    def run_id(self) -> str:
        """The name of the run."""
        return self._native.run_id

    @property
    def run_dir(self) -> Path:
        """Its directory."""
        return Path(self._native.run_dir)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended or was let go."""
        return self._native.is_over

    def wait(self, timeout: float | None = None) -> GepaRunResult:
        """Wait for the end and return the result.

        A run that failed raises the exception of its cause; one that was cancelled or interrupted raises
        `CancelledError`. `TimeoutError`: it is still going on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            return _result(self._native, timeout)
        finally:
            if self.is_over and not self._join_audience(None if deadline is None else _until(deadline)):
                warnings.warn(f"subscribers of run {self.run_id} are still busy with it", stacklevel=2)
            _forget_ended()

    def _join_audience(self, timeout: float | None) -> bool:
        """Wait until every subscriber has heard everything; whether they have."""
        if self._audience.is_alive():
            self._audience.join(timeout)
        return not self._audience.is_alive()

    def interrupt(self, reason: str = "interrupted") -> bool:
        """Let the run finish what is under way, save and end; it can be resumed. A second call does not wait.

        Whether the run was still there to hear it.
        """
        return self._native.signal("interrupt", reason)

    def stop(self, reason: str = "stopped") -> bool:
        """Finish early: no new search, then the held-out evaluation. Whether the run was still there to hear it."""
        return self._native.signal("stop", reason)

    def cancel(self, reason: str = "cancelled") -> bool:
        """End the run for good, now; what was paid for is kept. Whether the run was still there to hear it."""
        return self._native.signal("cancel", reason)

    def status(self) -> RunStatus:
        """Return where the run is and what it has used."""
        return RunStatus.read(self.run_dir)

    def best(self) -> dict[str, Any] | None:
        """Return the best candidate so far with its texts and scores; `None` before the seed is measured."""
        return run_best(self.run_dir) if (self.run_dir / "workspace.sqlite").exists() else None

    def iter_events(self, from_sequence: int = 0) -> Iterator[RunEvent]:
        """Yield the events of the run from one number on, as they are stored, until it ends."""
        return _events(self._native, from_sequence)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.wait()
            return
        self.interrupt(f"the block ended with {type(error).__name__}")
        # The exception of the block is the one that matters.
        with suppress(SynthOptimizerError):
            self.wait()


def _serve(native: NativeRun, subscribers: list[Subscriber]) -> None:
    """Tell subscribers of every event and of the end; one that raises is dropped from the list."""

    def tell(call: Callable[[Subscriber], None]) -> None:
        for subscriber in list(subscribers):
            try:
                call(subscriber)
            except Exception as problem:
                subscribers.remove(subscriber)
                warnings.warn(f"{type(subscriber).__name__} hears no more of the run: {problem!r}", stacklevel=2)

    result, error = None, None
    try:
        for event in _events(native):
            tell(methodcaller("on_event", event))
        result = _result(native, None)
    except Exception as problem:
        error = problem
    tell(methodcaller("close", result, error))


def _events(native: NativeRun, from_sequence: int = 0) -> Iterator[RunEvent]:
    def wait(last: int) -> bool:
        native.wait_for_event(last)
        return not native.is_over

    return follow(Path(native.run_dir) / "events.jsonl", wait, from_sequence)


def _result(native: NativeRun, timeout: float | None) -> GepaRunResult:
    if native.wait(timeout) is None:
        raise TimeoutError(f"run {native.run_id} is still going on after {timeout} s")
    return GepaRunResult.from_run_dir(native.run_dir)


def _until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


_under_way: set[RunHandle] = set()
"""The runs of this process that have not ended, or whose subscribers are busy."""


def _forget_ended() -> None:
    """Drop the runs that need no attention when the interpreter ends, and those of the process that forked."""
    for handle in tuple(_under_way):
        if handle._pid != os.getpid() or (handle.is_over and not handle._audience.is_alive()):
            _under_way.discard(handle)


@atexit.register
def _say_goodbye() -> None:
    """Save the runs that are still under way before the interpreter ends."""
    _forget_ended()
    under_way = tuple(_under_way)
    for handle in under_way:
        handle.interrupt("the interpreter ends")
    deadline = time.monotonic() + _GOODBYE_SECONDS
    for handle in under_way:
        # No event has this number: it is the end that is waited for.
        handle._native.wait_for_event(2**62, _until(deadline))
        handle._join_audience(_until(deadline))
