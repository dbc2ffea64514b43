"""The exchanges of `Client` with its service: send, send again, page, follow and wait."""

# Generated from aio_session.py by tools/unasync: change that file.

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from synth_optimizers.client import requests
from synth_optimizers.client.entries import RunDetail, Submission
from synth_optimizers.client.models import Best, ScoreRecord
from synth_optimizers.client.options import Options, load_httpx
from synth_optimizers.client.refusals import check_digest, check_stream, ending_of, not_ours, shaped
from synth_optimizers.client.requests import Reply, Request, TransportFailure
from synth_optimizers.client.retry import RetryPolicy, is_busy, is_refused
from synth_optimizers.client.sse import SseDecoder
from synth_optimizers.errors import SynthOptimizerError
from synth_optimizers.events import RunEvent

if TYPE_CHECKING:
    import httpx

__all__ = ["Session"]

T = TypeVar("T")
FIRST_LOOK, LONGEST_LOOK = 0.1, 2.0
"""Seconds between two looks at a run that is waited for."""
STEADY = 5.0
"""A stream that lasted this long was no failure."""


class Session:
    """The connections to one service, and how requests over them are repeated."""

    def __init__(self, options: Options) -> None:
        self._httpx = load_httpx()
        self._options = options
        self._http: httpx.Client = self._httpx.Client(**options.httpx())
        self.address = options.base_url
        self.timeout = options.timeout
        self.policy = RetryPolicy(options.base_url, options.retries)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def call(self, request: Request, read: Callable[[Any], T], *, patience: float | None = None) -> T:
        """Send a request and read its JSON answer."""
        reply = self.answer(request, patience=patience)
        return shaped(lambda known: read(known.json()), reply, self.address, reply)

    def answer(self, request: Request, *, patience: float | None = None) -> Reply:
        """Send a request until it is answered well, as often as may be.

        A refusal because the service is busy is met again and again for `patience` seconds.
        """
        deadline = None if patience is None else self._now() + patience
        failures = refusals = 0
        while True:
            outcome = self._send(request)
            if isinstance(outcome, Reply) and outcome.status < 400:
                if outcome.status in range(300, 400) and outcome.status != 304:
                    raise not_ours(outcome, self.address, f"it sends on to {outcome.headers.get('location')!r}")
                return outcome
            if deadline is not None and isinstance(outcome, Reply) and is_busy(outcome):
                self._sleep(self.policy.pause_for_capacity(request, outcome, refusals, deadline))
                refusals += 1
            else:
                self._sleep(self.policy.pause(request, outcome, failures))
                failures += 1

    def submit(self, request: Request, key: str, *, patience: float | None) -> Submission:
        """Submit a run; when nobody knows whether it was taken, the key to ask again with is named."""
        try:
            return self.call(request, Submission.of, patience=patience)
        except SynthOptimizerError as error:
            if not is_refused(error):
                error.hint = f"{error.hint} Submitted again with idempotency_key={key!r} it never becomes a second run."
            raise

    def pages(self, request: Request, read: Callable[[Any], T]) -> Generator[T]:
        """Yield the items of every page, by cursor."""
        params, cursor = request.params, None
        while True:
            more = () if cursor is None else (("cursor", cursor),)
            asked = replace(request, params=(*params, *more))
            items, cursor = self.call(asked, lambda page: (page["items"], page.get("next_cursor")))
            for known in items:
                yield shaped(read, known, self.address)
            if cursor is None:
                return

    def events(self, run_id: str, after: int, limit: int) -> Generator[RunEvent]:
        """Yield the events that are stored, page by page."""
        while True:
            path = requests.run_path(run_id, "events")
            request = requests.get(path, timeout=self.timeout, after=after, limit=limit)
            items, last = self.call(request, lambda page: (page["items"], page["last_sequence"]))
            for known in items:
                event = shaped(RunEvent.from_dict, known, self.address)
                if event.sequence_number > after:
                    after = event.sequence_number
                    yield event
            if not items or last is None or after >= last:
                return

    def scores(self, run_id: str, since: int | None, limit: int) -> Generator[ScoreRecord]:
        """Yield the scores, page by page."""
        path = requests.run_path(run_id, "scores")
        while True:
            request = requests.get(path, timeout=self.timeout, since=since, limit=limit)
            items, has_more, next_since = self.call(
                request, lambda page: (page["items"], page.get("has_more"), page.get("next_since"))
            )
            for known in items:
                yield shaped(ScoreRecord.of, known, self.address)
            if not has_more or next_since is None or next_since == since:
                return
            since = next_since

    def watch(self, run_id: str, last: int, retries: int | None = None) -> Generator[RunEvent]:
        """Yield the events after the last one that is known, each once and in order, until the run is over.

        A stream that breaks is opened again after the last event that came.
        """
        attempt = 0
        while True:
            request = requests.stream(run_id, last, timeout=self.timeout)
            opened, decoder, is_open = self._now(), SseDecoder(), False
            outcome: Reply | TransportFailure
            try:
                with self._opened(request) as (outcome, chunks):
                    if outcome.status == 204:
                        return
                    if is_open := outcome.status == 200:
                        check_stream(outcome, self.address)
                        for chunk in chunks:
                            for message in decoder.feed(chunk):
                                if message.event == "end":
                                    return
                                if message.event == "dropped":
                                    # The service lets go of a reader that is too slow for it; the log has the rest.
                                    raise TransportFailure(f"the stream was ended: {message.data}", is_sent=True)
                                event = shaped(RunEvent.from_line, message.data, self.address)
                                if event.sequence_number <= last:
                                    continue
                                if event.sequence_number > last + 1:
                                    told = f"event {event.sequence_number} came after {last}"
                                    raise TransportFailure(told, is_sent=True)
                                last, attempt = event.sequence_number, 0
                                yield event
                        raise TransportFailure("the stream ended before the run", is_sent=True)
            except TransportFailure as failure:
                outcome = failure
                if is_open and failure.is_timeout:
                    # Nothing happened for a while; the service is asked again at once.
                    continue
            if is_open and self._now() - opened >= STEADY:
                attempt = 0
            self._sleep(self.policy.pause(request, outcome, attempt, wished=decoder.retry, retries=retries))
            attempt += 1

    def wait(self, run_id: str, timeout: float | None) -> RunDetail:
        """Look at a run until it is over; one that did not end well raises the exception of its cause."""
        look = FIRST_LOOK
        deadline = None if timeout is None else self._now() + timeout
        while True:
            detail = self.call(requests.get(requests.run_path(run_id), timeout=self.timeout), RunDetail.of)
            if detail.is_over:
                if detail.status != "completed":
                    raise ending_of(run_id, detail.status, detail.error)
                return detail
            if deadline is not None and self._now() >= deadline:
                raise TimeoutError(f"run {run_id} is {detail.status} after {timeout} s")
            self._sleep(look if deadline is None else max(0.0, min(look, deadline - self._now())))
            look = min(LONGEST_LOOK, look * 1.5)

    def best(self, run_id: str, newer_than: int | None, timeout: float | None) -> Best | None:
        """Return the best candidate, or wait for one that is newer than an event."""
        if newer_than is None:
            found, _ = self._best(requests.get(requests.run_path(run_id, "best"), timeout=self.timeout))
            return found
        deadline = self._now() + (requests.LONG_POLL if timeout is None else timeout)
        while True:
            left = max(0.0, deadline - self._now())
            found, is_over = self._best(requests.waiting(run_id, newer_than, left, timeout=self.timeout))
            if found is not None and found.sequence > newer_than:
                return found
            if is_over or self._now() >= deadline:
                return None
            # One that does not wait is not asked without a pause.
            self._sleep(min(FIRST_LOOK, max(0.0, deadline - self._now())))

    def _best(self, request: Request) -> tuple[Best | None, bool]:
        """Return the best candidate, if there is one and it is new, and whether nothing new can come."""
        try:
            reply = self.answer(request)
        except SynthOptimizerError as error:
            if getattr(error, "status", None) == 404 and "best" in str(getattr(error, "code", "")):
                return None, False
            raise
        is_over = reply.headers.get("run-is-over") == "true"
        if reply.status in (204, 304):
            return None, is_over
        return shaped(lambda known: Best.of(known.json()), reply, self.address, reply), is_over

    def download(self, request: Request, out: BinaryIO) -> None:
        """Write the bytes of an answer to a file; their digest must be the one of the service."""
        attempt = 0
        while True:
            outcome: Reply | TransportFailure
            try:
                with self._opened(request) as (outcome, chunks):
                    if outcome.status == 200:
                        out.seek(0)
                        out.truncate()
                        digest = hashlib.sha256()
                        for chunk in chunks:
                            digest.update(chunk)
                            out.write(chunk)
                        check_digest(digest.hexdigest(), outcome, request.path, self.address)
                        return
            except TransportFailure as failure:
                outcome = failure
            self._sleep(self.policy.pause(request, outcome, attempt))
            attempt += 1

    def _now(self) -> float:
        return self.policy.backoff.clock()

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _send(self, request: Request) -> Reply | TransportFailure:
        """Send a request and return what came of it, good or not."""
        try:
            response = self._http.send(self._built(request))
        except self._httpx.RequestError as problem:
            return TransportFailure.of(problem)
        return Reply(response.status_code, response.headers, response.content)

    @contextmanager
    def _opened(self, request: Request) -> Generator[tuple[Reply, Iterator[bytes]]]:
        """Send a request and give the head of its answer; the body of a 200 comes piece by piece."""
        try:
            response = self._http.send(self._built(request), stream=True)
            try:
                content = b"" if response.status_code == 200 else response.read()
                yield Reply(response.status_code, response.headers, content), response.iter_bytes()
            finally:
                with suppress(RuntimeError):
                    # The event loop may be closed by now.
                    response.close()
        except self._httpx.RequestError as problem:
            raise TransportFailure.of(problem) from problem

    def _built(self, request: Request) -> httpx.Request:
        wait, usual = request.read_timeout, self.timeout
        limits = {"connect": self._options.connect_timeout, "read": wait, "write": usual, "pool": usual}
        return self._http.build_request(
            request.method,
            f"{self.address}{request.path}",
            params=list(request.params) or None,
            headers=dict(request.headers),
            content=request.content,
            extensions={"timeout": limits},
        )
