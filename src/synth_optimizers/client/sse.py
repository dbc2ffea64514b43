"""Parses server-sent events, as the HTML standard defines them, and the run events in them."""

import re
from collections.abc import Iterator

from synth_optimizers.client.errors import parse_answer, unexpected_reply
from synth_optimizers.client.requests import Reply, TransportFailure
from synth_optimizers.events import RunEvent

LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""A CR at the end of the buffer may be the first half of a CRLF."""


class SseDecoder:
    """Decodes chunks of bytes into messages. A message is complete at its blank line."""

    def __init__(self) -> None:
        self._held = b""
        self._begun = False
        self._event = ""
        self._data: list[str] = []
        self.retry: float | None = None
        """The reconnection delay in seconds that the server asks for."""

    def feed(self, chunk: bytes) -> Iterator[tuple[str, str]]:
        """Add bytes and yield each completed message: type (`message` by default) and data."""
        *lines, self._held = LINE_END.split(self._held + chunk)
        for line in lines:
            text = line.decode("utf-8", errors="replace")
            message = self._take(text if self._begun else text.removeprefix("\ufeff"))
            self._begun = True
            if message is not None:
                yield message

    def _take(self, line: str) -> tuple[str, str] | None:
        if not line:
            event, data = self._event or "message", self._data
            self._event, self._data = "", []
            return (event, "\n".join(data)) if data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "retry" and value.isascii() and value.isdecimal():
            self.retry = int(value) / 1000
        # Lines that begin with a colon are comments; unknown fields are ignored.
        return None


class EventStream(SseDecoder):
    """The run events of one reply with a sequence number above the last known one, each once and in order."""

    def __init__(self, reply: Reply, after: int, address: str) -> None:
        super().__init__()
        self._after, self._address = after, address
        self.has_ended = False
        """Whether the service has reported the end of the run."""
        kind = reply.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise unexpected_reply(reply, address, f"it sends {kind or 'no content type'} instead of an event stream")

    def events(self, chunk: bytes) -> Iterator[RunEvent]:
        """Add bytes and yield the completed events."""
        for kind, data in self.feed(chunk):
            if kind == "end":
                self.has_ended = True
                return
            if kind == "dropped":
                # The service drops readers that are too slow; the client reads the rest from the log.
                raise TransportFailure(f"the service closed the stream: {data}", is_sent=True)
            event = parse_answer(RunEvent.from_line, data, self._address)
            if event.sequence_number > self._after + 1:
                raise TransportFailure(f"event {event.sequence_number} followed event {self._after}", is_sent=True)
            if event.sequence_number > self._after:
                self._after = event.sequence_number
                yield event
