"""Events of a run, and a reader of the log of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth_optimizers._synth_optimizers import EventLog


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run: a line of `events.jsonl`."""

    sequence_number: int
    """Its position in the log, from 0 and without gaps."""
    run_id: str
    """The run that it belongs to."""
    ts: str
    """When it was stored: RFC 3339, UTC, milliseconds."""
    type: str
    """Its stable name, such as `candidate.accepted`."""
    fields: dict[str, Any]
    """The fields of its type; the event catalogue lists them."""
    message: str
    """The event as text."""

    @classmethod
    def from_line(cls, line: str) -> RunEvent:
        """Parse a line of a feed."""
        return cls.from_dict(json.loads(line))

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> RunEvent:
        """Parse an event from plain objects."""
        return cls(**{name: known[name] for name in cls.__slots__})

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain objects."""
        return {name: getattr(self, name) for name in self.__slots__}


def follow(run_dir: Path, wait: Callable[[int], bool], from_sequence: int = 0) -> Iterator[RunEvent]:
    """Yield the events of a run that may still be active, from a sequence number on.

    They are read from the log in the workspace: after a crash, `events.jsonl` may be damaged until the run is resumed.
    `wait` gets the sequence number of the last event read and blocks until there may be another one. When it returns
    `False`, the rest of the log is read to its end.
    """
    log = EventLog(run_dir)
    following, is_growing = from_sequence, True
    while True:
        while page := log.read(following):
            for known in page:
                event = RunEvent.from_dict(known)
                following = event.sequence_number + 1
                yield event
        if not is_growing:
            return
        is_growing = wait(following - 1)
