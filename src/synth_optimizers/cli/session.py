"""Follows a run in the foreground: reads its events, forwards signals, and updates the view."""

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from synth_optimizers.cli.output import print_message
from synth_optimizers.cli.view import Progress, View
from synth_optimizers.events import RunEvent

TICK_SECONDS = 0.1
CLOCK_RESOLUTION_SECONDS = 0.001
"""Event timestamps have millisecond resolution."""


def follow(
    source: Iterator[RunEvent],
    run: Progress,
    view: View,
    *,
    since: float,
    poll_signals: Callable[[], None] = lambda: None,
) -> None:
    """Apply events until the source ends. Events before `since` are history and are not shown.

    A separate thread reads the source, so that the clock and signals are handled while no event arrives.
    """
    inbox: queue.SimpleQueue[RunEvent | BaseException | None] = queue.SimpleQueue()

    def pump() -> None:
        try:
            for event in source:
                inbox.put(event)
            inbox.put(None)
        except BaseException as error:
            inbox.put(error)

    threading.Thread(target=pump, daemon=True, name="events").start()
    while True:
        poll_signals()
        try:
            item = inbox.get(timeout=TICK_SECONDS)
        except queue.Empty:
            view.tick(time.time())
            continue
        if item is None:
            return
        if isinstance(item, BaseException):
            raise item
        for level, text in run.apply(item):
            if run.latest >= since - CLOCK_RESOLUTION_SECONDS:
                view.show_line(level, text)


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
