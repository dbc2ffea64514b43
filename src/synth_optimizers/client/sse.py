"""Server-sent events as the HTML standard writes them, and the events of a run in them."""

import re
from collections.abc import Iterator

from synth_optimizers.client.refusals import not_ours, shaped
from synth_optimizers.client.requests import Reply, TransportFailure
from synth_optimizers.events import RunEvent

LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""A CR at the very end may still be half of a CRLF."""


class SseDecoder:
    """Turns bytes, in whatever pieces they come, into messages; a message counts once its blank line is there."""

    def __init__(self) -> None:
        self._held = b""
        self._begun = False
        self._event = ""
        self._data: list[str] = []
        self.retry: float | None = None
        """Seconds that the server asks to wait before coming back."""

    def feed(self, chunk: bytes) -> Iterator[tuple[str, str]]:
        """Take in bytes and yield the messages that they complete: type and data. The type is `message` by default."""
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
        # Whatever begins with a colon is a comment; unknown fields are left alone.
        return None


class EventStream(SseDecoder):
    """The events of a run in one reply, after the last one that is known, each once and in order."""

    def __init__(self, reply: Reply, after: int, address: str) -> None:
        super().__init__()
        self._after, self._address = after, address
        self.is_over = False
        """Whether the service has said that the run is over."""
        kind = reply.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise not_ours(reply, address, f"it sends {kind or 'something'} and no stream of events")

    def events(self, chunk: bytes) -> Iterator[RunEvent]:
        """Take in bytes and yield the events that they complete."""
        for kind, data in self.feed(chunk):
            if kind == "end":
                self.is_over = True
                return
            if kind == "dropped":
                # The service lets go of a reader that is too slow for it; the log has the rest.
                raise TransportFailure(f"the stream was ended: {data}", is_sent=True)
            event = shaped(RunEvent.from_line, data, self._address)
            if event.sequence_number > self._after + 1:
                raise TransportFailure(f"event {event.sequence_number} came after {self._after}", is_sent=True)
            if event.sequence_number > self._after:
                self._after = event.sequence_number
                yield event
