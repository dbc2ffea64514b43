"""`Client`: a service as Python calls it, and how requests to it are sent, repeated and followed."""

# Generated from aio.py by tools/unasync: change that file.

from __future__ import annotations

import hashlib
import io
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar

from synth_optimizers.arriving import arriving
from synth_optimizers.client import requests
from synth_optimizers.client.entries import RequestEntry, RunDetail, Submission
from synth_optimizers.client.models import Artifact, Best, Candidate, Frontier, Rollout, ScoreRecord, ScoreSeries
from synth_optimizers.client.record import items
from synth_optimizers.client.records import Acknowledgement, Health, Pruned, Readiness, Step, WorkerRun, WorkerTick
from synth_optimizers.client.refusals import best_of, check_digest, ending_of, shaped
from synth_optimizers.client.requests import (
    ADDRESS,
    Reply,
    Request,
    TransportFailure,
    by_cursor,
    by_event,
    by_since,
    run_path,
)
from synth_optimizers.client.retry import RetryPolicy, is_refused
from synth_optimizers.client.sse import EventStream
from synth_optimizers.errors import SynthOptimizerError
from synth_optimizers.events import RunEvent
from synth_optimizers.extras import load
from synth_optimizers.preflight import CheckReport

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
FIRST_LOOK, LONGEST_LOOK = 0.1, 2.0
"""Seconds between two looks at a run that is waited for."""
STEADY = 5.0
"""A stream that lasted this long was no failure."""


class Client:
    """A connection to a service; as a context manager it is closed at the end of the block.

    `timeout` is how long an answer may take, `connect_timeout` how long a connection may. What may be repeated is sent
    again up to `retries` times, with waits that grow, when the service cannot be reached or is busy.

    >>> with Client("http://127.0.0.1:8879") as client:
    ...     submission = client.submit("gepa.toml")
    ...     for event in client.watch(submission.run_id):
    ...         print(event.message)
    ...     print(client.best(submission.run_id))
    """

    def __init__(
        self,
        base_url: str = ADDRESS,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        connect_timeout: float = 5.0,
        retries: int = 5,
    ) -> None:
        self.base_url = requests.checked_address(base_url)
        self._waits = (connect_timeout, timeout)
        self._policy = RetryPolicy(self.base_url, retries)
        self._httpx = load("httpx", "Client", extra="client", purpose="talking to a service")
        # It follows nobody elsewhere and takes no proxy from the environment.
        self._http: httpx.Client = self._httpx.Client(
            base_url=self.base_url, headers=requests.headers_of(token), trust_env=False
        )

    def __repr__(self) -> str:
        return f"Client({self.base_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # The service itself.

    def health(self) -> Health:
        """Return which process answers."""
        return self._get("/health", Health.of)

    def ready(self) -> Readiness:
        """Return that runs are taken; raises while the service starts or drains."""
        return self._get("/ready", Readiness.of)

    def status(self) -> dict[str, Any]:
        """Return the status of the database of the service: counts, and the newest 200 requests."""
        return self._get("/status", dict)

    def workspace(self) -> dict[str, Any]:
        """Return counts, leases, workers and invariants."""
        return self._get("/workspace", dict)

    def metrics(self) -> str:
        """Return the metrics as Prometheus reads them."""
        return (self._answer(requests.get("/metrics"))).content.decode()

    def prune(
        self, *, older_than: str | datetime | None = None, status: Sequence[str] = (), dry_run: bool = True
    ) -> Pruned:
        """Remove runs that are over, with their directories; with `dry_run` only name them."""
        body = {"older_than": requests.moment(older_than), "status": list(status), "dry_run": dry_run}
        return self._call(requests.post("/workspace/prune", body), Pruned.of)

    # Requests.

    def submit(
        self,
        config_path: str | PathLike[str] | None = None,
        *,
        config: Mapping[str, Any] | str | None = None,
        priority: int = 0,
        auto_start: bool = True,
        manual_step: bool = False,
        allow_unverified: bool = False,
        overrides: Sequence[str] = (),
        idempotency_key: str | None = None,
        wait_for_capacity: float | None = None,
    ) -> Submission:
        """Hand a run over to the service; once this returns, it is stored there.

        `config_path` is a file that the service can read, beneath its config root; `config` is a mapping of the same
        shape, or TOML text. `overrides` are `key=value` texts as for `--set`. `allow_unverified` takes the run without
        asking its container and proposer first. Without an `idempotency_key` one is made up, so that a request that is
        sent again never begins a second run. `wait_for_capacity` keeps asking for so many seconds while the service is
        full. A configuration with problems raises `ConfigError`, whose `field_errors` name every one of them.
        """
        key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
        options = {
            "priority": priority,
            "auto_start": auto_start,
            "manual_step": manual_step,
            "allow_unverified": allow_unverified,
        }
        request = requests.submission("/runs", config_path, config, options, overrides=overrides, idempotency_key=key)
        try:
            return self._call(request, Submission.of, patience=wait_for_capacity)
        except SynthOptimizerError as error:
            if not is_refused(error):
                # Nobody knows whether it was taken.
                error.hint = f"{error.hint} Submitted again with idempotency_key={key!r} it never becomes a second run."
            raise

    def preflight(
        self,
        config_path: str | PathLike[str] | None = None,
        *,
        config: Mapping[str, Any] | str | None = None,
        allow_unverified: bool = False,
        overrides: Sequence[str] = (),
    ) -> CheckReport:
        """Return everything that stands in the way of a run; nothing is stored and nothing is paid for."""
        path, options = "/runs/preflight", {"allow_unverified": allow_unverified}
        request = requests.submission(path, config_path, config, options, overrides=overrides)
        return self._call(request, CheckReport.from_native)

    def runs(self, *, state: str | None = None, page_size: int = 50) -> Generator[RequestEntry]:
        """Yield the requests, the newest first; `state` keeps those of one status."""
        return self._pages("/runs", RequestEntry.of, by_cursor, state=state, limit=page_size)

    def run(self, run_id: str) -> RunDetail:
        """Return everything about one run."""
        return self._get(run_path(run_id), RunDetail.of)

    def delete(self, run_id: str) -> None:
        """Remove a run that is over; one that is not there is no error."""
        self._answer(replace(requests.get(run_path(run_id)), method="DELETE"))

    def wait(self, run_id: str, *, timeout: float | None = None) -> RunDetail:
        """Wait until a run is over and return everything about it.

        A run that failed raises the exception of its cause; one that was cancelled raises `CancelledError`.
        `TimeoutError`: it is still going on.
        """
        look = FIRST_LOOK
        deadline = None if timeout is None else self._policy.now() + timeout
        while True:
            detail = self.run(run_id)
            if detail.is_over:
                if detail.status != "completed":
                    raise ending_of(run_id, detail.status, detail.error)
                return detail
            if deadline is not None and self._policy.now() >= deadline:
                raise TimeoutError(f"run {run_id} is {detail.status} after {timeout} s")
            self._sleep(look if deadline is None else max(0.0, min(look, deadline - self._policy.now())))
            look = min(LONGEST_LOOK, look * 1.5)

    # Control requests.

    def cancel(self, run_id: str, *, reason: str | None = None) -> Acknowledgement:
        """End a run for good; what was paid for is kept."""
        return self._ask(run_id, "cancel", reason=reason)

    def stop(self, run_id: str, *, reason: str | None = None) -> Acknowledgement:
        """Finish a run early: no new search, then the held-out evaluation."""
        return self._ask(run_id, "stop", reason=reason)

    def pause(self, run_id: str, *, timeout_seconds: int | None = None, reason: str | None = None) -> Acknowledgement:
        """Let a run rest; one that nobody resumes in `timeout_seconds` is cancelled."""
        return self._ask(run_id, "pause", timeout_seconds=timeout_seconds, reason=reason)

    def resume(self, run_id: str, *, reason: str | None = None) -> Acknowledgement:
        """Let a run that rests go on."""
        return self._ask(run_id, "resume", reason=reason)

    def step(self, run_id: str, *, timeout: float | None = None) -> Step:
        """Do one unit of work of a run that goes on by steps; `timeout` is how long it may take."""
        return self._call(requests.post(run_path(run_id, "step"), {}, lambda _usual: timeout), Step.of)

    # Events.

    def events(self, run_id: str, *, after: int = -1, page_size: int = 500) -> Generator[RunEvent]:
        """Yield the events that are stored, from the one after a number on."""
        return self._pages(run_path(run_id, "events"), RunEvent.from_dict, by_event, after=after, limit=page_size)

    def watch(self, run_id: str, *, after: int = -1, retries: int | None = None) -> Generator[RunEvent]:
        """Yield the events as they happen, each once and in order, until the run is over.

        When the connection breaks, it goes on after the last event that came. `retries` is how often in a row it is
        tried without success; those of the client without it.
        """
        tries = self._policy.tries(retries=retries)
        while True:
            request = requests.stream(run_id, after)
            opened, stream = self._policy.now(), None
            outcome: Reply | TransportFailure
            try:
                with self._opened(request) as (outcome, chunks):
                    if outcome.status == 204:
                        return
                    if outcome.status == 200:
                        stream = EventStream(outcome, after, self.base_url)
                        for chunk in chunks:
                            for event in stream.events(chunk):
                                after, tries.failures = event.sequence_number, 0
                                yield event
                            if stream.is_over:
                                return
                        raise TransportFailure("the stream ended before the run", is_sent=True)
            except TransportFailure as failure:
                outcome = failure
                if stream and failure.is_timeout:
                    # Nothing happened for a while; the service is asked again at once.
                    continue
            if stream and self._policy.now() - opened >= STEADY:
                tries.failures = 0
            self._sleep(tries.pause(request, outcome, stream.retry if stream else None))

    # What was found.

    def candidates(self, run_id: str, *, status: str | None = None, page_size: int = 100) -> Generator[Candidate]:
        """Yield the candidates; `status` keeps those of one status."""
        return self._pages(run_path(run_id, "candidates"), Candidate.of, by_cursor, status=status, limit=page_size)

    def candidate(self, run_id: str, candidate_id: str) -> Candidate:
        """Return one candidate."""
        return self._get(run_path(run_id, "candidates", candidate_id), Candidate.of)

    def rollouts(
        self,
        run_id: str,
        *,
        candidate_id: str | None = None,
        stage: str | None = None,
        status: str | None = None,
        split: str | None = None,
        page_size: int = 100,
    ) -> Generator[Rollout]:
        """Yield the rollouts; the options keep those of one candidate, stage, status or split."""
        kept = {"candidate_id": candidate_id, "stage": stage, "status": status, "split": split}
        return self._pages(run_path(run_id, "rollouts"), Rollout.of, by_cursor, limit=page_size, **kept)

    def rollout(self, run_id: str, rollout_id: str | int, *, trace: bool = False) -> Rollout:
        """Return one rollout by its id or its number, with its trace if wanted."""
        path = run_path(run_id, "rollouts", str(rollout_id))
        return self._get(path, Rollout.of, include="trace" if trace else None)

    def frontier(self, run_id: str) -> Frontier:
        """Return the candidates that are best on some row."""
        return self._get(run_path(run_id, "frontier"), Frontier.of)

    def scores(self, run_id: str, *, since: int | None = None, page_size: int = 100) -> Generator[ScoreRecord]:
        """Yield the scores in order, while the run goes on as well; `since` keeps those after an event."""
        return self._pages(run_path(run_id, "scores"), ScoreRecord.of, by_since, since=since, limit=page_size)

    def score_series(
        self, run_id: str, *, metric: str | None = None, split: str | None = None
    ) -> tuple[ScoreSeries, ...]:
        """Return the scores in order, one series for each metric and split."""
        path = run_path(run_id, "scores", "series")
        return self._get(path, items(ScoreSeries.of, "series"), metric=metric, split=split)

    def best(self, run_id: str, *, wait_newer_than: int | None = None, timeout: float | None = None) -> Best | None:
        """Return the best candidate so far; `None` before one is measured.

        With `wait_newer_than`, the `sequence` of one that is known, it waits for a newer one: for `timeout` seconds,
        or 30 without it. `None`: no newer one came.
        """
        deadline = self._policy.now() + (requests.LONG_POLL if timeout is None else timeout)
        while True:
            left = max(0.0, deadline - self._policy.now())
            reply = self._answer(requests.best(run_id, wait_newer_than, left), accepted=404)
            found = best_of(reply, self.base_url)
            if wait_newer_than is None or (found is not None and found.sequence > wait_newer_than):
                return found
            if reply.headers.get("run-is-over") == "true" or self._policy.now() >= deadline:
                return None
            # One that does not wait is not asked without a pause.
            self._sleep(min(FIRST_LOOK, max(0.0, deadline - self._policy.now())))

    def artifacts(self, run_id: str) -> tuple[Artifact, ...]:
        """Return the files that the run has left so far."""
        return self._get(run_path(run_id, "artifacts"), items(Artifact.of))

    def artifact(self, run_id: str, name: str) -> bytes:
        """Return the content of a file of the run; its digest is checked where the service names one."""
        with io.BytesIO() as out:
            self._fetch(requests.artifact(run_id, name), out)
            return out.getvalue()

    def download(self, run_id: str, name: str, path: str | PathLike[str]) -> Path:
        """Write a file of the run to a path, whole or not at all; its digest is checked where the service names one."""
        with arriving(Path(path)) as out:
            self._fetch(requests.artifact(run_id, name), out)
        return Path(path)

    # Workers.

    def run_next(
        self, *, worker_id: str | None = None, lease_seconds: float | None = None, timeout: float | None = None
    ) -> WorkerRun:
        """Claim the next request and carry its run out; this takes as long as the run, at most `timeout`."""
        body = {"worker_id": worker_id, "lease_seconds": lease_seconds}
        return self._call(requests.post("/worker/run-next", body, lambda _usual: timeout), WorkerRun.of)

    def tick(
        self, *, worker_id: str | None = None, lease_seconds: float | None = None, timeout: float | None = None
    ) -> WorkerTick:
        """Do one unit of work; `timeout` is how long it may take."""
        body = {"worker_id": worker_id, "lease_seconds": lease_seconds}
        return self._call(requests.post("/worker/tick", body, lambda _usual: timeout), WorkerTick.of)

    def recover(self) -> tuple[RequestEntry, ...]:
        """Give requests whose worker was lost back to the queue."""
        read = items(RequestEntry.of, "recovered_run_requests")
        return self._call(requests.post("/worker/recover", {}), read)

    # Exchanges.

    def _get(self, path: str, read: Callable[[Any], T], **params: object) -> T:
        return self._call(requests.get(path, **params), read)

    def _ask(self, run_id: str, action: str, **body: object) -> Acknowledgement:
        return self._call(requests.post(run_path(run_id, action), body), Acknowledgement.of)

    def _call(self, request: Request, read: Callable[[Any], T], *, patience: float | None = None) -> T:
        """Send a request and read its JSON answer."""
        reply = self._answer(request, patience=patience)
        return shaped(lambda known: read(known.json()), reply, self.base_url, reply)

    def _answer(self, request: Request, *, patience: float | None = None, accepted: int = 200) -> Reply:
        """Send a request until it is answered well, or as `accepted`; a busy service is asked `patience` seconds."""
        tries = self._policy.tries(patience=patience)
        while True:
            outcome = self._send(request)
            if isinstance(outcome, Reply) and (outcome.status < 300 or outcome.status in (304, accepted)):
                return outcome
            self._sleep(tries.pause(request, outcome))

    def _pages(
        self, path: str, read: Callable[[Any], T], more: Callable[[dict[str, Any]], dict[str, Any]], **params: object
    ) -> Generator[T]:
        """Yield the items of every page; `more` names the parameters that the next one is asked for with."""
        known: dict[str, object] = {}
        while known != params:
            known = params
            page = self._get(path, lambda page: (page["items"], more(page)), **params)
            for item in page[0]:
                yield shaped(read, item, self.base_url)
            params = {**params, **page[1]}

    def _fetch(self, request: Request, out: BinaryIO) -> None:
        """Write the bytes of an answer to a file; their digest must be the one of the service."""
        tries = self._policy.tries()
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
                        check_digest(digest.hexdigest(), outcome, request.path, self.base_url)
                        return
            except TransportFailure as failure:
                outcome = failure
            self._sleep(tries.pause(request, outcome))

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _send(self, request: Request) -> Reply | TransportFailure:
        """Send a request and return what came of it, good or not."""
        try:
            response = self._http.send(request.build(self._http, *self._waits))
        except self._httpx.RequestError as problem:
            return TransportFailure.of(problem)
        return Reply(response.status_code, response.headers, response.content)

    @contextmanager
    def _opened(self, request: Request) -> Generator[tuple[Reply, Iterator[bytes]]]:
        """Send a request and give the head of its answer; the body of a 200 comes piece by piece."""
        try:
            response = self._http.send(request.build(self._http, *self._waits), stream=True)
            try:
                content = b"" if response.status_code == 200 else response.read()
                yield Reply(response.status_code, response.headers, content), response.iter_bytes()
            finally:
                with suppress(RuntimeError):
                    # The event loop may be closed by now.
                    response.close()
        except self._httpx.RequestError as problem:
            raise TransportFailure.of(problem) from problem
