"""Follows a run in the foreground: reads its events, forwards signals, and updates the view."""

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from synth_optimizers._synth_optimizers import EventLog
from synth_optimizers.cli.output import print_message
from synth_optimizers.cli.view import Line, Progress, View
from synth_optimizers.events import RunEvent

TICK_SECONDS = 0.1
CLOCK_RESOLUTION_SECONDS = 0.001
"""Event timestamps have millisecond resolution."""


class Feed(Protocol):
    """Where the events of a run come from."""

    def advance(self, run: Progress) -> list[Line] | None:
        """Apply the next events, which may take a tick to arrive, and return their lines; `None` at the end."""


class LogFeed:
    """The events of a run in a directory. They are applied a few times a second, as many at once as there are.

    `wait` blocks for at most the given seconds, and returns whether the log may still grow.
    """

    def __init__(self, run_dir: Path, wait: Callable[[float], bool]) -> None:
        self._log = EventLog(run_dir)
        self._wait = wait
        self._is_growing = True

    def advance(self, run: Progress) -> list[Line] | None:
        """Apply the events that were stored since the last call."""
        is_last, self._is_growing = not self._is_growing, self._is_growing and self._wait(TICK_SECONDS)
        before = run.events
        lines = run.read(self._log)
        return None if is_last and run.events == before else lines


class EventFeed:
    """The events of an iterator, such as those of a service.

    A separate thread reads the iterator, so that the clock and signals are handled while no event arrives.
    """

    def __init__(self, source: Iterator[RunEvent]) -> None:
        self._source = source
        self._inbox: queue.SimpleQueue[RunEvent | BaseException | None] = queue.SimpleQueue()
        threading.Thread(target=self._pump, daemon=True, name="events").start()

    def _pump(self) -> None:
        try:
            for event in self._source:
                self._inbox.put(event)
            self._inbox.put(None)
        except BaseException as error:
            self._inbox.put(error)

    def advance(self, run: Progress) -> list[Line] | None:
        """Apply the next event, if one arrives within a tick."""
        try:
            item = self._inbox.get(timeout=TICK_SECONDS)
        except queue.Empty:
            return []
        if isinstance(item, BaseException):
            raise item
        return None if item is None else run.apply(item)


def follow(
    feed: Feed, run: Progress, view: View, *, since: float, poll_signals: Callable[[], None] = lambda: None
) -> None:
    """Apply events until the feed ends. Events before `since` are history and are not shown."""
    poll_signals()
    while (lines := feed.advance(run)) is not None:
        for at, level, text in lines:
            if at >= since - CLOCK_RESOLUTION_SECONDS:
                view.show_line(level, text)
        if not lines:
            view.tick(time.time())
        poll_signals()


@contextlib.contextmanager
def signal_handlers(receive: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP with `receive` for the duration of the block."""
    before: dict[int, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A process started with nohup ignores SIGHUP.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, receive)
    try:
        yield
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)


class SignalForwarder:
    """Forwards signals to a run.

    The first Ctrl-C, SIGTERM or SIGHUP lets the run finish calls in flight and save. The second stops without waiting.
    The third ends the process at once.
    """

    def __init__(self) -> None:
        self.count = 0
        self.number: int | None = None
        self._early: list[str] = []
        self._interrupt: Callable[[str], object] = self._early.append
        self._view: View | None = None
        self._shown = 0

    def attach(self, interrupt: Callable[[str], bool], view: View) -> None:
        """Set the run and the view that receive signals, and deliver the signals that arrived before."""
        self._view = view
        # From here on the run receives each signal itself. Each earlier signal is delivered once.
        self._interrupt = interrupt
        for reason in self._early:
            interrupt(reason)

    @property
    def exit_code(self) -> int | None:
        """The exit code for the last signal, or `None` without one."""
        return None if self.number is None else 128 + self.number

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Forward the signal to the run. Uses unbuffered output, because a handler may interrupt other output."""
        self.number = number
        self.count += 1
        if self.count > 2:
            with contextlib.suppress(OSError):
                os.write(2, b"\x1b[?25h\n" if sys.stderr.isatty() else b"\n")
            os._exit(128 + number)
        self._interrupt(signal.Signals(number).name)

    def poll_signals(self) -> None:
        """Show the person what a signal has done. Call this periodically."""
        if self._view is None or self._shown == self.count:
            return
        self._shown = self.count
        if self.number == signal.SIGHUP:
            self._view.detach()
        if self.count == 1:
            self._view.show_notice("interrupted: waiting for calls in flight, then saving; Ctrl-C again stops at once")
        else:
            self._view.show_notice("stopping now; received answers are saved")


def cached_poll(poll: Callable[[], int | None], seconds: float) -> Callable[[], int | None]:
    """Return a function that calls `poll` at most once per interval. A failed call returns `None`, as unknown."""
    polled_at, found = 0.0, None

    def latest() -> int | None:
        nonlocal polled_at, found
        if time.monotonic() - polled_at >= seconds:
            polled_at, found = time.monotonic(), None
            with contextlib.suppress(Exception):
                found = poll()
        return found

    return latest


def print_warnings(warnings: tuple[Any, ...]) -> None:
    """Print the warnings of a configuration."""
    for warning in warnings:
        place = f"{warning.source}:{warning.line}: " if warning.line is not None else ""
        print_message(f"warning: {place}{warning.message}" + (f" ({warning.hint})" if warning.hint else ""))
