"""Events of a run, and readers of event feeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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


def follow(path: Path, wait: Callable[[int], bool], from_sequence: int = 0) -> Iterator[RunEvent]:
    """Yield the events of a feed that may still grow, from a sequence number on.

    `wait` gets the sequence number of the last event read and blocks until there may be another one. When it returns
    `False`, the rest of the feed is read to its end.
    """
    last = from_sequence - 1
    offset, held = 0, b""
    is_growing = True
    while True:
        if path.exists():
            with path.open("rb") as feed:
                if feed.seek(0, 2) < offset:
                    # The repair of a feed after a crash truncates it first.
                    offset, held = 0, b""
                feed.seek(offset)
                held += feed.read()
                offset = feed.tell()
            *lines, held = held.split(b"\n")
            for line in lines:
                event = RunEvent.from_line(line.decode())
                if event.sequence_number > last:
                    last = event.sequence_number
                    yield event
        if not is_growing:
            return
        is_growing = wait(last)
