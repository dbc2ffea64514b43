"""Server-sent events as the HTML standard writes them, from bytes in whatever pieces they come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """One dispatched event."""

    event: str
    """Its type; `message` when none was named."""
    data: str
    """Its data lines, joined."""
    last_event_id: str
    """The id that was named last."""


class SseDecoder:
    """Turns bytes into messages; a message counts once its blank line is there."""

    def __init__(self) -> None:
        self._held = b""
        self._begun = False
        self._event = ""
        self._data: list[str] = []
        self._last_event_id = ""
        self.retry: float | None = None
        """Seconds that the server asks to wait before coming back."""

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """Take in bytes and yield the messages that they complete."""
        self._held += chunk
        while (line := self._line()) is not None:
            message = self._take(line)
            if message is not None:
                yield message

    def _line(self) -> str | None:
        """Cut off one line: it ends in LF, CR or CRLF. A CR at the very end may still be half of a CRLF."""
        ends = [place for place in (self._held.find(b"\n"), self._held.find(b"\r")) if place >= 0]
        if not ends:
            return None
        end = min(ends)
        after = end + 1
        if self._held[end : end + 1] == b"\r":
            if after == len(self._held):
                return None
            after += self._held[after : after + 1] == b"\n"
        line, self._held = self._held[:end], self._held[after:]
        text = line.decode("utf-8", errors="replace")
        if not self._begun:
            self._begun = True
            text = text.removeprefix("\ufeff")
        return text

    def _take(self, line: str) -> Message | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._last_event_id = value
        elif name == "retry" and value.isascii() and value.isdecimal():
            self.retry = int(value) / 1000
        # Whatever begins with a colon is a comment; unknown fields are left alone.
        return None

    def _dispatch(self) -> Message | None:
        event, data = self._event or "message", self._data
        self._event, self._data = "", []
        return Message(event, "\n".join(data), self._last_event_id) if data else None
