"""A person and a run: follows the events, passes signals on, and keeps the view up to date."""

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

from synth_optimizers.cli.output import say
from synth_optimizers.cli.view import Progress, View
from synth_optimizers.events import RunEvent

TICK = 0.1
CLOCK = 0.001
"""Events are dated to the millisecond."""


def follow(
    source: Iterator[RunEvent], run: Progress, view: View, *, since: float, pulse: Callable[[], None] = lambda: None
) -> None:
    """Fold events until there are no more; those before `since` are history and are not told.

    The source is read by a thread of its own, so that time passes and signals are heard while nothing happens.
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
        pulse()
        try:
            item = inbox.get(timeout=TICK)
        except queue.Empty:
            view.tick(time.time())
            continue
        if item is None:
            return
        if isinstance(item, BaseException):
            raise item
        for weight, text in run.apply(item):
            if run.latest >= since - CLOCK:
                view.tell(weight, text)


@contextlib.contextmanager
def signals_to(receive: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Hand SIGINT, SIGTERM and SIGHUP over as long as the block lasts."""
    before: dict[int, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Whoever began the process with nohup wants it to go on.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, receive)
    try:
        yield
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)


class Signals:
    """The first Ctrl-C, SIGTERM or SIGHUP lets the run finish what is under way and save; the second one does not wait.

    A third one leaves at once, whatever the run does.
    """

    def __init__(self) -> None:
        self.count = 0
        self.number: int | None = None
        self._early: list[str] = []
        self._interrupt: Callable[[str], object] = self._early.append
        self._view: View | None = None
        self._shown = 0

    def attach(self, interrupt: Callable[[str], bool], view: View) -> None:
        """Name the run that is interrupted; what came before is passed on to it."""
        self._view = view
        # From here on the run hears each signal itself; those of before are passed on, each of them once.
        self._interrupt = interrupt
        for reason in self._early:
            interrupt(reason)

    @property
    def exit_code(self) -> int | None:
        """The exit code of a process that ends by the signal that came."""
        return None if self.number is None else 128 + self.number

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Pass the signal on to the run. No buffered output: a handler may run in the middle of one."""
        self.number = number
        self.count += 1
        if self.count > 2:
            with contextlib.suppress(OSError):
                os.write(2, b"\x1b[?25h\n" if sys.stderr.isatty() else b"\n")
            os._exit(128 + number)
        self._interrupt(signal.Signals(number).name)

    def pulse(self) -> None:
        """Tell the person what a signal has done; call it now and then."""
        if self._view is None or self._shown == self.count:
            return
        self._shown = self.count
        if self.number == signal.SIGHUP:
            self._view.hang_up()
        if self.count == 1:
            self._view.notice("interrupted: finishing what is in flight, then saving; Ctrl-C again stops now")
        else:
            self._view.notice("stopping now; what was answered is saved")


def now_and_then(look: Callable[[], int | None], seconds: float) -> Callable[[], int | None]:
    """Return a look that is taken again after some seconds; a view goes on without what cannot be seen."""
    looked, found = 0.0, None

    def latest() -> int | None:
        nonlocal looked, found
        if time.monotonic() - looked >= seconds:
            looked, found = time.monotonic(), None
            with contextlib.suppress(Exception):
                found = look()
        return found

    return latest


def announce(warnings: tuple[Any, ...]) -> None:
    """Tell the person what a configuration means in another way than it is written."""
    for warning in warnings:
        place = f"{warning.source}:{warning.line}: " if warning.line is not None else ""
        say(f"warning: {place}{warning.message}" + (f" ({warning.hint})" if warning.hint else ""))
