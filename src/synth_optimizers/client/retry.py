"""When a request is sent again, and after how long."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from synth_optimizers.client.refusals import not_ours, refusal_of, unreachable
from synth_optimizers.client.requests import Reply, Request, TransportFailure
from synth_optimizers.errors import SynthOptimizerError

BUSY = frozenset({429, 502, 503, 504})
"""The service, or what stands before it, cannot answer now."""
REFUSES = frozenset({429, 503})
"""With one of these the service says that it did nothing and that it may later."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often one client sends a request again, and after how long.

    Waits double, each shortened at random so that many clients do not come back together.
    """

    address: str
    retries: int
    first: float = 0.25
    longest: float = 5.0
    patience: float = 30.0
    """A wish of the service to wait longer than this is not met: the refusal is raised instead."""
    chance: Callable[[], float] = random.random
    now: Callable[[], float] = time.monotonic

    def backoff(self, attempt: int, wished: float | None = None) -> float:
        """Return the seconds to wait after an attempt, counted from 0; never less than the service wished."""
        if wished is not None:
            return wished + min(1.0, wished * 0.1) * self.chance()
        whole: float = min(self.longest, self.first * 2.0 ** min(attempt, 32))
        return whole * (0.5 + 0.5 * self.chance())

    def tries(self, *, retries: int | None = None, patience: float | None = None) -> Tries:
        """Begin to count the tries of one request; a busy service is asked again and again for `patience` seconds."""
        deadline = None if patience is None else self.now() + patience
        return Tries(self, self.retries if retries is None else retries, deadline)


@dataclass(slots=True)
class Tries:
    """How often one request was tried in vain."""

    policy: RetryPolicy
    retries: int
    deadline: float | None
    failures: int = 0
    refusals: int = 0
    """Those of a service that is asked until the deadline: they use up no retries."""

    def pause(self, request: Request, outcome: Reply | TransportFailure, wished: float | None = None) -> float:
        """Return how long to wait before the request is sent again, or raise what stands in the way."""
        policy = self.policy
        if isinstance(outcome, TransportFailure):
            error: SynthOptimizerError = unreachable(outcome, policy.address)
        else:
            error = refusal_of(outcome, policy.address) if outcome.status >= 400 else not_ours(outcome, policy.address)
            wished = retry_after(outcome)
        if self.deadline is not None and isinstance(outcome, Reply) and outcome.status in REFUSES:
            pause = policy.backoff(self.refusals, wished)
            is_last = policy.now() + pause > self.deadline
            self.refusals += 1
        else:
            pause = policy.backoff(self.failures, wished)
            is_last = self.failures >= self.retries or pause > policy.patience
            self.failures += 1
        if is_last or not may_repeat(request, outcome):
            raise error
        return pause


def is_refused(error: SynthOptimizerError) -> bool:
    """Return whether the service itself has said that it did nothing."""
    status, is_ours = getattr(error, "status", None), getattr(error, "code", "") != "not_a_service"
    return status is not None and is_ours and (status < 500 or status in REFUSES)


def may_repeat(request: Request, outcome: Reply | TransportFailure) -> bool:
    """Return whether a request may be sent again after this outcome.

    One that is not repeatable is sent again only when it was never sent, or when the service itself says that it did
    nothing and may later: whoever else saw it may have acted on it.
    """
    if isinstance(outcome, TransportFailure):
        return not outcome.is_sent or (request.is_repeatable and not outcome.is_timeout)
    if request.is_repeatable:
        return outcome.status in BUSY
    return outcome.status in REFUSES and _is_retryable(outcome)


def _is_retryable(reply: Reply) -> bool:
    try:
        return reply.json()["error"]["retryable"] is True
    except (ValueError, KeyError, TypeError):
        return False


def retry_after(reply: Reply) -> float | None:
    """Return the seconds that the service asks to wait: a number or a date."""
    text = reply.headers.get("retry-after", "").strip()
    if not text:
        return None
    if text.replace(".", "", 1).isdecimal():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
