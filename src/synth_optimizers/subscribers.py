"""Whoever wants to hear of a run's events as they happen."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from threading import Lock, Thread
from typing import TYPE_CHECKING, Protocol

from synth_optimizers.events import RunEvent

if TYPE_CHECKING:
    from synth_optimizers.result import GepaRunResult

__all__ = ["Subscriber"]


class Subscriber(Protocol):
    """Hears of every event of a run, in order, from one thread.

    A subscriber that raises is warned about and hears nothing more; the run goes on.
    """

    def on_event(self, event: RunEvent) -> None:
        """Take in one event."""

    def close(self, result: GepaRunResult | None, error: BaseException | None) -> None:
        """Take in how the run ended."""


class Audience:
    """The subscribers of one run and the thread that serves them."""

    def __init__(self, subscribers: Iterable[Subscriber], events: Iterator[RunEvent]) -> None:
        self._subscribers = list(subscribers)
        self._closing = Lock()
        self._thread: Thread | None = None
        if self._subscribers:
            self._thread = Thread(target=self._serve, args=(events,), name="synth-optimizers-subscribers", daemon=True)
            self._thread.start()

    def _serve(self, events: Iterator[RunEvent]) -> None:
        for event in events:
            for subscriber in list(self._subscribers):
                self._call(subscriber, lambda heard: heard.on_event(event))  # noqa: B023 (called at once)

    def close(self, result: GepaRunResult | None, error: BaseException | None) -> None:
        """Let the subscribers hear the rest, then how it ended. Happens once."""
        if self._thread is not None:
            self._thread.join()
        with self._closing:
            while self._subscribers:
                self._call(self._subscribers[0], lambda heard: heard.close(result, error), is_last=True)

    def _call(self, subscriber: Subscriber, call: Callable[[Subscriber], None], *, is_last: bool = False) -> None:
        try:
            call(subscriber)
        except Exception as problem:
            is_last = True
            warnings.warn(f"{type(subscriber).__name__} hears no more of the run: {problem!r}", stacklevel=2)
        if is_last:
            self._subscribers.remove(subscriber)
