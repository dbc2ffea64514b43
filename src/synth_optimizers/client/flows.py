"""Conversations with a service: send, send again, page, follow and wait, for both transports."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, TypeVar

from synth_optimizers.client import requests
from synth_optimizers.client.effects import Emit, Flow, Open, Pause, Read, Reply, Request, Send, TransportFailure
from synth_optimizers.client.entries import RunDetail, Submission
from synth_optimizers.client.models import Best, ScoreRecord
from synth_optimizers.client.refusals import ending_of, not_ours, refusal_of, unreachable
from synth_optimizers.client.retry import REFUSES, Backoff, may_repeat, retry_after
from synth_optimizers.client.sse import SseDecoder
from synth_optimizers.errors import OptimizerHttpError, SynthOptimizerError
from synth_optimizers.events import RunEvent

__all__ = ["Flows"]

T = TypeVar("T")
FIRST_LOOK, LONGEST_LOOK = 0.1, 2.0
"""Seconds between two looks at a run that is waited for."""
STEADY = 5.0
"""A stream that lasted this long was no failure."""
DIGEST = 64
"""Characters of a SHA-256 digest in hex."""


class Broken(TransportFailure):
    """A stream that ended before the run did, or left something out."""

    def __init__(self, message: str) -> None:
        super().__init__(message, is_sent=True)


@dataclass(frozen=True, slots=True)
class Flows:
    """The conversations of one client."""

    address: str
    timeout: float
    """Seconds to wait for an answer."""
    retries: int
    """How often a request is sent again."""
    backoff: Backoff = field(default_factory=Backoff)

    def call(self, request: Request, read: Callable[[Any], T], *, patience: float | None = None) -> Flow[T]:
        """Send a request and read its JSON answer."""
        reply = yield from self.answer(request, patience=patience)
        return self._shaped(lambda known: read(known.json()), reply, reply)

    def submit(self, request: Request, key: str, *, patience: float | None) -> Flow[Submission]:
        """Submit a run; when nobody knows whether it was taken, the key to ask again with is named."""
        try:
            return (yield from self.call(request, Submission.of, patience=patience))
        except SynthOptimizerError as error:
            if not _is_refused(error):
                error.hint = f"{error.hint} Submitted again with idempotency_key={key!r} it never becomes a second run."
            raise

    def text(self, request: Request) -> Flow[str]:
        """Send a request and return its answer as it is."""
        reply = yield from self.answer(request)
        return reply.content.decode()

    def nothing(self, request: Request) -> Flow[None]:
        """Send a request whose answer has no body."""
        yield from self.answer(request)

    def answer(self, request: Request, *, patience: float | None = None) -> Flow[Reply]:
        """Send a request until it is answered well, as often as may be.

        A refusal because the service is busy is met again and again for `patience` seconds.
        """
        deadline = None if patience is None else self.backoff.clock() + patience
        failures = refusals = 0
        while True:
            outcome = yield from _tried(Send(request))
            if isinstance(outcome, Reply) and outcome.status < 400:
                if outcome.status in range(300, 400) and outcome.status != 304:
                    raise not_ours(outcome, self.address, f"it sends on to {outcome.headers.get('location')!r}")
                return outcome
            if deadline is not None and isinstance(outcome, Reply) and outcome.status in REFUSES:
                yield Pause(self._patient(request, outcome, refusals, deadline))
                refusals += 1
            else:
                yield Pause(self._pause(request, outcome, failures))
                failures += 1

    def pages(self, request: Request, read: Callable[[Any], Any]) -> Flow[None]:
        """Emit the items of every page, by cursor."""
        params, cursor = request.params, None
        while True:
            more = () if cursor is None else (("cursor", cursor),)
            asked = replace(request, params=(*params, *more))
            items, cursor = yield from self.call(asked, lambda page: (page["items"], page.get("next_cursor")))
            for known in items:
                yield Emit(self._shaped(read, known))
            if cursor is None:
                return

    def events(self, run_id: str, after: int, limit: int) -> Flow[None]:
        """Emit the events that are stored, page by page."""
        while True:
            request = requests.events(run_id, after, limit, timeout=self.timeout)
            items, last = yield from self.call(request, lambda page: (page["items"], page["last_sequence"]))
            for known in items:
                event = self._shaped(RunEvent.from_dict, known)
                if event.sequence_number > after:
                    after = event.sequence_number
                    yield Emit(event)
            if not items or last is None or after >= last:
                return

    def scores(self, run_id: str, since: int | None, limit: int) -> Flow[None]:
        """Emit the scores, page by page."""
        path = requests.run_path(run_id, "scores")
        while True:
            request = requests.get(path, timeout=self.timeout, since=since, limit=limit)
            page = yield from self.call(
                request, lambda page: (page["items"], page.get("has_more"), page.get("next_since"))
            )
            items, has_more, next_since = page
            for known in items:
                yield Emit(self._shaped(ScoreRecord.of, known))
            if not has_more or next_since is None or next_since == since:
                return
            since = next_since

    def watch(self, run_id: str, after: int, retries: int | None = None) -> Flow[None]:
        """Emit events as they happen, each once and in order, until the run is over.

        A stream that breaks is opened again after the last event that came.
        """
        attempt, last = 0, after
        while True:
            request = requests.stream(run_id, last, timeout=self.timeout)
            opened, wished = self.backoff.clock(), None
            outcome = yield from _tried(Open(request))
            if isinstance(outcome, Reply) and outcome.status == 204:
                return
            if isinstance(outcome, Reply) and outcome.status == 200:
                decoder = SseDecoder()
                try:
                    self._check_stream(outcome)
                    while chunk := (yield Read()):
                        for message in decoder.feed(chunk):
                            if message.event == "end":
                                return
                            if message.event == "dropped":
                                # The service lets go of a reader that is too slow for it; the log has the rest.
                                raise Broken(f"the stream was ended: {message.data}")
                            event = self._shaped(RunEvent.from_line, message.data)
                            if event.sequence_number <= last:
                                continue
                            if event.sequence_number > last + 1:
                                raise Broken(f"event {event.sequence_number} came after {last}")
                            last, attempt = event.sequence_number, 0
                            yield Emit(event)
                    outcome = Broken("the stream ended before the run")
                except TransportFailure as failure:
                    outcome = failure
                wished = decoder.retry
                if self.backoff.clock() - opened >= STEADY:
                    attempt = 0
                if outcome.is_timeout:
                    # Nothing happened for a while; the service is asked again at once.
                    continue
            yield Pause(self._pause(request, outcome, attempt, wished=wished, retries=retries))
            attempt += 1

    def wait(self, run_id: str, timeout: float | None) -> Flow[RunDetail]:
        """Look at a run until it is over; one that did not end well raises the exception of its cause."""
        clock, look = self.backoff.clock, FIRST_LOOK
        deadline = None if timeout is None else clock() + timeout
        while True:
            request = requests.get(requests.run_path(run_id), timeout=self.timeout)
            detail = yield from self.call(request, RunDetail.of)
            if detail.is_over:
                if detail.status != "completed":
                    raise ending_of(run_id, detail.status, detail.error)
                return detail
            if deadline is not None and clock() >= deadline:
                raise TimeoutError(f"run {run_id} is {detail.status} after {timeout} s")
            yield Pause(look if deadline is None else max(0.0, min(look, deadline - clock())))
            look = min(LONGEST_LOOK, look * 1.5)

    def best(self, run_id: str, newer_than: int | None, timeout: float | None) -> Flow[Best | None]:
        """Return the best candidate, or wait for one that is newer than an event."""
        if newer_than is None:
            request = requests.get(requests.run_path(run_id, "best"), timeout=self.timeout)
            return self._best((yield from self._maybe(request)))
        clock = self.backoff.clock
        deadline = clock() + (requests.LONG_POLL if timeout is None else timeout)
        while True:
            left = max(0.0, deadline - clock())
            reply = yield from self._maybe(requests.waiting(run_id, newer_than, left, timeout=self.timeout))
            found = self._best(reply)
            if found is not None and found.sequence > newer_than:
                return found
            is_over = reply is not None and reply.headers.get("run-is-over") == "true"
            if is_over or clock() >= deadline:
                return None
            # One that does not wait is not asked without a pause.
            yield Pause(min(FIRST_LOOK, max(0.0, deadline - clock())))

    def download(self, request: Request, out: BinaryIO) -> Flow[str]:
        """Write the bytes of an answer to a file and return their digest, which must be the one of the service."""
        attempt = 0
        while True:
            outcome = yield from _tried(Open(request))
            if isinstance(outcome, Reply) and outcome.status == 200:
                out.seek(0)
                out.truncate()
                digest = hashlib.sha256()
                try:
                    while chunk := (yield Read()):
                        digest.update(chunk)
                        out.write(chunk)
                    return self._checked(digest.hexdigest(), outcome, request)
                except TransportFailure as failure:
                    outcome = failure
            yield Pause(self._pause(request, outcome, attempt))
            attempt += 1

    def _maybe(self, request: Request) -> Flow[Reply | None]:
        """Send a request for something that may not be there yet."""
        try:
            reply = yield from self.answer(request)
        except SynthOptimizerError as error:
            if getattr(error, "status", None) == 404 and "best" in str(getattr(error, "code", "")):
                return None
            raise
        return reply

    def _best(self, reply: Reply | None) -> Best | None:
        if reply is None or reply.status in (204, 304):
            return None
        return self._shaped(lambda known: Best.of(known.json()), reply, reply)

    def _patient(self, request: Request, outcome: Reply, attempt: int, deadline: float) -> float:
        """Return how long to wait before a service that is busy is asked again, or raise its refusal."""
        pause = self.backoff.pause(attempt, retry_after(outcome))
        if not may_repeat(request, outcome) or self.backoff.clock() + pause > deadline:
            raise refusal_of(outcome, self.address)
        return pause

    def _pause(
        self,
        request: Request,
        outcome: Reply | TransportFailure,
        attempt: int,
        wished: float | None = None,
        retries: int | None = None,
    ) -> float:
        """Return how long to wait before the request is sent again, or raise what stands in the way."""
        if isinstance(outcome, TransportFailure):
            error: SynthOptimizerError = unreachable(outcome, self.address)
        else:
            error = refusal_of(outcome, self.address) if outcome.status >= 400 else not_ours(outcome, self.address)
            wished = retry_after(outcome)
        if not may_repeat(request, outcome):
            raise error
        pause = self.backoff.pause(attempt, wished)
        if attempt >= (self.retries if retries is None else retries) or pause > self.backoff.patience:
            raise error
        return pause

    def _shaped(self, read: Callable[[Any], T], known: object, reply: Reply | None = None) -> T:
        """Read an answer, or a part of it; one of another shape is not ours."""
        try:
            return read(known)
        except (ValueError, TypeError, AttributeError) as problem:
            told = f"its answer is not the JSON that was asked for ({problem})"
            raise not_ours(reply or Reply(200, {}), self.address, told) from problem
        except KeyError as problem:
            raise not_ours(reply or Reply(200, {}), self.address, f"its answer has no {problem}") from problem

    def _check_stream(self, reply: Reply) -> None:
        kind = reply.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise not_ours(reply, self.address, f"it sends {kind or 'something'} and no stream of events")

    def _checked(self, found: str, reply: Reply, request: Request) -> str:
        told = reply.headers.get("etag", "").removeprefix("W/").strip('"').removeprefix("sha256:").lower()
        if len(told) == DIGEST and told != found:
            message = f"{request.path} from {self.address} is damaged: its digest is {found} instead of {told}"
            error = OptimizerHttpError(f"{OptimizerHttpError.error_code}: {message}")
            error.hint = "Download it again; when that does not help, the file is damaged where the service keeps it."
            raise error
        return found


def _is_refused(error: SynthOptimizerError) -> bool:
    """Return whether the service itself has said that it did nothing."""
    status, is_ours = getattr(error, "status", None), getattr(error, "code", "") != "not_a_service"
    return status is not None and is_ours and (status < 500 or status in REFUSES)


def _tried(effect: Send | Open) -> Flow[Reply | TransportFailure]:
    """Do something and return what came of it, good or not."""
    try:
        reply: Reply = yield effect
    except TransportFailure as failure:
        return failure
    return reply
