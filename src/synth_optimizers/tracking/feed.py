"""How far the feed of a run has been taken in, so that no event counts twice."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from synth_optimizers.events import RunEvent

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_START = 0
"""The number of the first event of a run."""


@dataclass(slots=True)
class Feed:
    """The place in the feed of one run."""

    run_id: str
    started_at: str
    """When the run was started; empty if the feed was joined later."""
    last: int
    """The number of the last event that was taken in."""

    @classmethod
    def of(cls, event: RunEvent) -> Feed:
        """Return the feed of a run of which nothing but this event is known, and not even this one is taken in."""
        is_start = event.sequence_number == _START
        return cls(event.run_id, event.ts if is_start else "", event.sequence_number - 1)

    @property
    def is_whole(self) -> bool:
        """Whether the feed was read from its first event on."""
        return bool(self.started_at)

    @property
    def key(self) -> str:
        """What tells this run from every other one, also from one that was begun anew under the same run id."""
        return hashlib.sha256(f"{self.run_id}\n{self.started_at}".encode()).hexdigest()[:16]

    def holds(self, event: RunEvent) -> bool:
        """Whether an event is of this run."""
        is_start = event.sequence_number == _START
        return event.run_id == self.run_id and not (is_start and self.is_whole and event.ts != self.started_at)

    def take(self, event: RunEvent) -> bool:
        """Whether an event is new; it is known from then on."""
        is_new = event.sequence_number > self.last
        self.last = max(self.last, event.sequence_number)
        return is_new


def epoch_micros(ts: str) -> int:
    """Return the time of an event in microseconds since 1970."""
    return (datetime.fromisoformat(ts) - _EPOCH) // timedelta(microseconds=1)
