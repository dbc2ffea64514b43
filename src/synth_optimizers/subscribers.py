"""Whoever wants to hear of a run's events as they happen."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from typing import TYPE_CHECKING, Protocol

from synth_optimizers.events import RunEvent

if TYPE_CHECKING:
    from synth_optimizers.result import GepaRunResult


class Subscriber(Protocol):
    """Hears of every event of a run, in order, from one thread.

    A subscriber that raises is warned about and hears nothing more; the run goes on.
    """

    def on_event(self, event: RunEvent) -> None:
        """Take in one event."""

    def close(self, result: GepaRunResult | None, error: BaseException | None) -> None:
        """Take in how the run ended. Called once, also when nobody waits for the run."""


class Audience:
    """The subscribers of one run and the thread that serves them."""

    def __init__(
        self, subscribers: Iterable[Subscriber], events: Iterator[RunEvent], end: Callable[[], GepaRunResult]
    ) -> None:
        self._subscribers = list(subscribers)
        self._end = end
        self._thread: Thread | None = None
        if self._subscribers:
            self._thread = Thread(target=self._serve, args=(events,), name="synth-optimizers-subscribers", daemon=True)
            self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a subscriber has not heard everything yet."""
        return self._thread is not None and self._thread.is_alive()

    def join(self, timeout: float | None) -> bool:
        """Wait until every subscriber has heard everything; whether they have."""
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.is_busy

    def _serve(self, events: Iterator[RunEvent]) -> None:
        result, error = None, None
        try:
            for event in events:
                for subscriber in list(self._subscribers):
                    self._call(subscriber, lambda heard, event=event: heard.on_event(event))  # type: ignore[misc]
            result = self._end()
        except Exception as problem:
            error = problem
        for subscriber in list(self._subscribers):
            self._call(subscriber, lambda heard: heard.close(result, error))

    def _call(self, subscriber: Subscriber, call: Callable[[Subscriber], None]) -> None:
        try:
            call(subscriber)
        except Exception as problem:
            self._subscribers.remove(subscriber)
            warnings.warn(f"{type(subscriber).__name__} hears no more of the run: {problem!r}", stacklevel=2)
