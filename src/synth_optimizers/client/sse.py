"""Server-sent events as the HTML standard writes them, from bytes in whatever pieces they come."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""A CR at the very end may still be half of a CRLF."""


@dataclass(frozen=True, slots=True)
class Message:
    """One dispatched event."""

    event: str
    """Its type; `message` when none was named."""
    data: str
    """Its data lines, joined."""


class SseDecoder:
    """Turns bytes into messages; a message counts once its blank line is there. Ids are left to the events."""

    def __init__(self) -> None:
        self._held = b""
        self._begun = False
        self._event = ""
        self._data: list[str] = []
        self.retry: float | None = None
        """Seconds that the server asks to wait before coming back."""

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """Take in bytes and yield the messages that they complete."""
        *lines, self._held = LINE_END.split(self._held + chunk)
        for line in lines:
            text = line.decode("utf-8", errors="replace")
            message = self._take(text if self._begun else text.removeprefix("\ufeff"))
            self._begun = True
            if message is not None:
                yield message

    def _take(self, line: str) -> Message | None:
        if not line:
            event, data = self._event or "message", self._data
            self._event, self._data = "", []
            return Message(event, "\n".join(data)) if data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "retry" and value.isascii() and value.isdecimal():
            self.retry = int(value) / 1000
        # Whatever begins with a colon is a comment; unknown fields are left alone.
        return None
