"""What a conversation with a service asks of its transport: requests go out, replies come in, nothing is done here."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

__all__ = ["Effect", "Emit", "Flow", "Open", "Pause", "Read", "Reply", "Request", "Send", "TransportFailure"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a service."""

    method: str
    path: str
    """Beneath the address of the service, with its parts quoted."""
    params: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes | None = None
    """A JSON document."""
    read_timeout: float | None = None
    """Seconds in which the next bytes must come; `None` waits as long as it takes."""
    is_repeatable: bool = False
    """Whether the same request a second time does nothing that the first has not done."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    content: bytes = field(default=b"", repr=False)
    """The body; empty for a stream that is read on."""

    def json(self) -> Any:  # noqa: ANN401 (whatever the body holds)
        """Read the body as JSON; `ValueError` when it is none."""
        return json.loads(self.content)


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request and answer with its `Reply`."""

    request: Request


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request and answer with its `Reply` as soon as the head is there; `Read` brings the body of a 200."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Answer with the next bytes of the body that was opened; with none at its end."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand one item to whoever iterates."""

    item: Any


Effect = Send | Open | Read | Pause | Emit
Flow = Generator[Effect, Any, T]
"""A conversation: it yields what it wants done, is sent the answers, and returns its result."""


class TransportFailure(Exception):  # noqa: N818 (it never leaves the client)
    """The exchange broke off. The transport throws it into the conversation."""

    def __init__(self, message: str, *, is_sent: bool, is_timeout: bool = False) -> None:
        super().__init__(message)
        self.is_sent = is_sent
        """Whether the service may have seen the request."""
        self.is_timeout = is_timeout
