"""Retry policy: which requests are sent again, and after how long."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from synth_optimizers.client.errors import connection_failure, error_from_reply, unexpected_reply
from synth_optimizers.client.requests import Reply, Request, TransportFailure
from synth_optimizers.errors import SynthOptimizerError

BUSY_STATUSES = frozenset({429, 502, 503, 504})
"""HTTP statuses with which the service, or a proxy in front of it, is busy."""
REJECTED_STATUSES = frozenset({429, 503})
"""HTTP statuses with which the service rejects a request without having processed it."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often one client sends a request again, and after how long.

    Delays double. Each is shortened at random, so that many clients do not retry at the same time.
    """

    address: str
    retries: int
    first: float = 0.25
    longest: float = 5.0
    patience: float = 30.0
    """The longest delay that the service may ask for; beyond it, the error is raised at once."""
    chance: Callable[[], float] = random.random
    now: Callable[[], float] = time.monotonic

    def backoff(self, attempt: int, requested_delay: float | None = None) -> float:
        """Return the delay in seconds after an attempt, counted from 0; never less than the service asked for."""
        if requested_delay is not None:
            return requested_delay + min(1.0, requested_delay * 0.1) * self.chance()
        whole: float = min(self.longest, self.first * 2.0 ** min(attempt, 32))
        return whole * (0.5 + 0.5 * self.chance())

    def tries(self, *, retries: int | None = None, patience: float | None = None) -> Tries:
        """Start counting the attempts of one request; a busy service is retried for `patience` seconds."""
        deadline = None if patience is None else self.now() + patience
        return Tries(self, self.retries if retries is None else retries, deadline)


@dataclass(slots=True)
class Tries:
    """Counts the failed attempts of one request."""

    policy: RetryPolicy
    retries: int
    deadline: float | None
    failures: int = 0
    refusals: int = 0
    """Rejections by a busy service before the deadline; they do not count as retries."""

    def pause(self, request: Request, outcome: Reply | TransportFailure, requested_delay: float | None = None) -> float:
        """Return the delay before the next attempt, or raise the error if there is none."""
        policy = self.policy
        if isinstance(outcome, TransportFailure):
            error: SynthOptimizerError = connection_failure(outcome, policy.address)
        else:
            error = (
                error_from_reply(outcome, policy.address)
                if outcome.status >= 400
                else unexpected_reply(outcome, policy.address)
            )
            requested_delay = retry_after(outcome)
        if self.deadline is not None and isinstance(outcome, Reply) and outcome.status in REJECTED_STATUSES:
            pause = policy.backoff(self.refusals, requested_delay)
            is_last = policy.now() + pause > self.deadline
            self.refusals += 1
        else:
            pause = policy.backoff(self.failures, requested_delay)
            is_last = self.failures >= self.retries or pause > policy.patience
            self.failures += 1
        if is_last or not may_repeat(request, outcome):
            raise error
        return pause


def is_rejected(error: SynthOptimizerError) -> bool:
    """Return whether the service itself rejected the request without processing it."""
    status, is_ours = getattr(error, "status", None), getattr(error, "code", "") != "not_a_service"
    return status is not None and is_ours and (status < 500 or status in REJECTED_STATUSES)


def may_repeat(request: Request, outcome: Reply | TransportFailure) -> bool:
    """Return whether a request may be sent again after this outcome.

    A request that is not repeatable is sent again only if it was never sent, or if the service itself rejected it
    without processing it. After any other failure, a proxy or the service may have acted on it.
    """
    if isinstance(outcome, TransportFailure):
        return not outcome.is_sent or (request.is_repeatable and not outcome.is_timeout)
    if request.is_repeatable:
        return outcome.status in BUSY_STATUSES
    return outcome.status in REJECTED_STATUSES and _is_retryable(outcome)


def _is_retryable(reply: Reply) -> bool:
    try:
        return reply.json()["error"]["retryable"] is True
    except (ValueError, KeyError, TypeError):
        return False


def retry_after(reply: Reply) -> float | None:
    """Return the delay in seconds that the service asks for, as a number or a date."""
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
