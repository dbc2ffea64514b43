"""`AsyncClient`: the HTTP client of the service, with retries, pagination and event streams.

`sync.py` is generated from this file by `tools/unasync`.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar

from synth_optimizers.atomic_file import write_atomically
from synth_optimizers.client import requests
from synth_optimizers.client.errors import check_digest, parse_answer, parse_best, run_failure
from synth_optimizers.client.record import items
from synth_optimizers.client.requests import (
    ADDRESS,
    Reply,
    Request,
    TransportFailure,
    next_page_after,
    next_page_cursor,
    next_page_since,
    run_path,
)
from synth_optimizers.client.result_records import (
    Artifact,
    Best,
    Candidate,
    Frontier,
    Rollout,
    ScoreRecord,
    ScoreSeries,
)
from synth_optimizers.client.retry import RetryPolicy, is_rejected
from synth_optimizers.client.run_records import RequestEntry, RunDetail, SubmitResult
from synth_optimizers.client.service_records import (
    ControlResult,
    Health,
    PruneResult,
    Readiness,
    RunNextResult,
    StepResult,
    TickResult,
)
from synth_optimizers.client.sse import EventStream
from synth_optimizers.client.view_records import Comparison, Lineage, RowTable, Turn, TurnDetail, row_table
from synth_optimizers.config import Overrides
from synth_optimizers.errors import SynthOptimizerError
from synth_optimizers.events import RunEvent
from synth_optimizers.extras import load
from synth_optimizers.preflight import CheckReport

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.1, 2.0
"""The shortest and longest interval in seconds between two polls of a run that `wait` waits for."""
STABLE_STREAM_SECONDS = 5.0
"""A stream that lasted this many seconds resets the count of failures."""


class AsyncClient:
    """A connection to a service. As a context manager, it is closed at the end of the block.

    `timeout` limits the wait for an answer, `connect_timeout` the wait for a connection, both in seconds. A request
    that is safe to repeat is sent again up to `retries` times, with growing delays, when the service is unreachable or
    busy.

    >>> async with AsyncClient("http://127.0.0.1:8879") as client:
    ...     submission = await client.submit("gepa.toml")
    ...     async for event in client.watch(submission.run_id):
    ...         print(event.message)
    ...     print(await client.best(submission.run_id))
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
        self.base_url = requests.check_address(base_url)
        self._timeouts = (connect_timeout, timeout)
        self._policy = RetryPolicy(self.base_url, retries)
        self._httpx = load("httpx", "Client", extra="client", purpose="the client of a service")
        # It follows no redirects and ignores proxy settings of the environment.
        self._http: httpx.AsyncClient = self._httpx.AsyncClient(
            base_url=self.base_url, headers=requests.request_headers(token), trust_env=False
        )

    def __repr__(self) -> str:
        return f"AsyncClient({self.base_url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # Service.

    async def health(self) -> Health:
        """Return which process answers."""
        return await self._get("/health", Health.of)

    async def ready(self) -> Readiness:
        """Return that the service accepts runs; raise while it starts or drains."""
        return await self._get("/ready", Readiness.of)

    async def status(self) -> dict[str, Any]:
        """Return the status of the service's database: counts, and the newest 200 run requests."""
        return await self._get("/status", dict)

    async def workspace(self) -> dict[str, Any]:
        """Return counts, leases, workers and invariants."""
        return await self._get("/workspace", dict)

    async def metrics(self) -> str:
        """Return the metrics in the Prometheus text format."""
        return (await self._answer(requests.get("/metrics"))).content.decode()

    async def prune(
        self, *, older_than: str | datetime | None = None, status: Sequence[str] = (), dry_run: bool = True
    ) -> PruneResult:
        """Delete finished runs and their directories; with `dry_run`, only list them."""
        body = {"older_than": requests.format_time(older_than), "status": list(status), "dry_run": dry_run}
        return await self._call(requests.post("/workspace/prune", body), PruneResult.of)

    # Run requests.

    async def submit(
        self,
        config_path: str | PathLike[str] | None = None,
        *,
        config: Mapping[str, Any] | str | None = None,
        priority: int = 0,
        auto_start: bool = True,
        manual_step: bool = False,
        allow_unverified: bool = False,
        overrides: Overrides = (),
        idempotency_key: str | None = None,
        wait_for_capacity: float | None = None,
    ) -> SubmitResult:
        """Submit a run to the service. When this returns, the run request is stored durably.

        `config_path` is a file that the service can read, beneath its config root. `config` is a mapping of the same
        shape, or TOML text. `overrides` are `key=value` texts as for `--set`, or a mapping of values by dotted
        path. `allow_unverified` accepts the run without contacting its container and proposer first. Without an
        `idempotency_key` the client generates one, so that a repeated submission never starts a second run.
        `wait_for_capacity` retries for this many seconds while the queue is full. An invalid configuration raises
        `ConfigError`, whose `field_errors` list every problem.
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
            return await self._call(request, SubmitResult.of, patience=wait_for_capacity)
        except SynthOptimizerError as error:
            if not is_rejected(error):
                # The outcome of the submission is unknown.
                error.hint = f"{error.hint} Submit again with idempotency_key={key!r} to avoid a second run."
            raise

    async def preflight(
        self,
        config_path: str | PathLike[str] | None = None,
        *,
        config: Mapping[str, Any] | str | None = None,
        allow_unverified: bool = False,
        overrides: Overrides = (),
    ) -> CheckReport:
        """Return every preflight finding of a configuration. The service stores nothing and pays for nothing."""
        path, options = "/runs/preflight", {"allow_unverified": allow_unverified}
        request = requests.submission(path, config_path, config, options, overrides=overrides)
        return await self._call(request, CheckReport.from_native)

    def runs(self, *, state: str | None = None, page_size: int = 50) -> AsyncGenerator[RequestEntry]:
        """Yield the run requests, newest first; `state` selects one status."""
        return self._pages("/runs", RequestEntry.of, next_page_cursor, state=state, limit=page_size)

    async def run(self, run_id: str) -> RunDetail:
        """Return everything about one run."""
        return await self._get(run_path(run_id), RunDetail.of)

    async def delete(self, run_id: str) -> None:
        """Delete a finished run. Deleting a missing run succeeds."""
        await self._answer(replace(requests.get(run_path(run_id)), method="DELETE"))

    async def wait(self, run_id: str, *, timeout: float | None = None) -> RunDetail:
        """Wait until a run has ended and return everything about it.

        Raises the exception of the cause if the run failed, `CancelledError` if it was cancelled, and `TimeoutError` if
        it is still active after `timeout` seconds.
        """
        look = MIN_POLL_SECONDS
        deadline = None if timeout is None else self._policy.now() + timeout
        while True:
            detail = await self.run(run_id)
            if detail.is_terminal:
                if detail.status != "completed":
                    raise run_failure(run_id, detail.status, detail.error)
                return detail
            if deadline is not None and self._policy.now() >= deadline:
                raise TimeoutError(f"run {run_id} is {detail.status} after {timeout} s")
            await self._sleep(look if deadline is None else max(0.0, min(look, deadline - self._policy.now())))
            look = min(MAX_POLL_SECONDS, look * 1.5)

    # Control requests.

    async def cancel(self, run_id: str, *, reason: str | None = None) -> ControlResult:
        """Cancel a run for good; results that were already computed are kept."""
        return await self._control(run_id, "cancel", reason=reason)

    async def stop(self, run_id: str, *, reason: str | None = None) -> ControlResult:
        """End the search of a run early, then do the held-out evaluation."""
        return await self._control(run_id, "stop", reason=reason)

    async def pause(
        self, run_id: str, *, timeout_seconds: int | None = None, reason: str | None = None
    ) -> ControlResult:
        """Pause a run until it is resumed. With a timeout, it is cancelled if it is not resumed in time."""
        return await self._control(run_id, "pause", timeout_seconds=timeout_seconds, reason=reason)

    async def resume(self, run_id: str, *, reason: str | None = None) -> ControlResult:
        """Resume a paused run."""
        return await self._control(run_id, "resume", reason=reason)

    async def step(self, run_id: str, *, timeout: float | None = None) -> StepResult:
        """Execute one unit of work of a run in manual-step mode; `timeout` limits its duration in seconds."""
        return await self._call(
            requests.post(run_path(run_id, "step"), {}, lambda _client_timeout: timeout), StepResult.of
        )

    # Events.

    def events(self, run_id: str, *, after: int = -1, page_size: int = 500) -> AsyncGenerator[RunEvent]:
        """Yield the stored events with a sequence number greater than `after`."""
        return self._pages(
            run_path(run_id, "events"), RunEvent.from_dict, next_page_after, after=after, limit=page_size
        )

    async def watch(self, run_id: str, *, after: int = -1, retries: int | None = None) -> AsyncGenerator[RunEvent]:
        """Yield the events as they happen, each once and in order, until the run has ended.

        When the connection breaks, the stream resumes after the last event received. `retries` limits the consecutive
        failures; without it, the client's own limit applies.
        """
        tries = self._policy.tries(retries=retries)
        while True:
            request = requests.stream(run_id, after)
            opened, stream = self._policy.now(), None
            outcome: Reply | TransportFailure
            try:
                async with self._open_stream(request) as (outcome, chunks):
                    if outcome.status == 204:
                        return
                    if outcome.status == 200:
                        stream = EventStream(outcome, after, self.base_url)
                        async for chunk in chunks:
                            for event in stream.events(chunk):
                                after, tries.failures = event.sequence_number, 0
                                yield event
                            if stream.has_ended:
                                return
                        raise TransportFailure("the stream ended before the run", is_sent=True)
            except TransportFailure as failure:
                outcome = failure
                if stream and failure.is_timeout:
                    # The stream was idle; open it again at once.
                    continue
            if stream and self._policy.now() - opened >= STABLE_STREAM_SECONDS:
                tries.failures = 0
            await self._sleep(tries.pause(request, outcome, stream.retry if stream else None))

    # Results.

    def candidates(self, run_id: str, *, status: str | None = None, page_size: int = 100) -> AsyncGenerator[Candidate]:
        """Yield the candidates; `status` selects one status."""
        return self._pages(
            run_path(run_id, "candidates"), Candidate.of, next_page_cursor, status=status, limit=page_size
        )

    async def candidate(self, run_id: str, candidate_id: str) -> Candidate:
        """Return one candidate."""
        return await self._get(run_path(run_id, "candidates", candidate_id), Candidate.of)

    def rollouts(
        self,
        run_id: str,
        *,
        candidate_id: str | None = None,
        example_id: str | None = None,
        stage: str | None = None,
        status: str | None = None,
        split: str | None = None,
        page_size: int = 100,
    ) -> AsyncGenerator[Rollout]:
        """Yield the rollouts; the options select one candidate, row, stage, status or split."""
        kept = {
            "candidate_id": candidate_id,
            "example_id": example_id,
            "stage": stage,
            "status": status,
            "split": split,
        }
        return self._pages(run_path(run_id, "rollouts"), Rollout.of, next_page_cursor, limit=page_size, **kept)

    async def rollout(self, run_id: str, rollout_id: str | int, *, trace: bool = False) -> Rollout:
        """Return one rollout by its id or its number, optionally with its trace."""
        path = run_path(run_id, "rollouts", str(rollout_id))
        return await self._get(path, Rollout.of, include="trace" if trace else None)

    async def frontier(self, run_id: str) -> Frontier:
        """Return the candidates that are best on at least one row."""
        return await self._get(run_path(run_id, "frontier"), Frontier.of)

    def scores(self, run_id: str, *, since: int | None = None, page_size: int = 100) -> AsyncGenerator[ScoreRecord]:
        """Yield the scores in order, also of an active run; `since` selects those after a sequence number."""
        return self._pages(run_path(run_id, "scores"), ScoreRecord.of, next_page_since, since=since, limit=page_size)

    async def score_series(
        self, run_id: str, *, metric: str | None = None, split: str | None = None
    ) -> tuple[ScoreSeries, ...]:
        """Return the scores in order, one series for each metric and split."""
        path = run_path(run_id, "scores", "series")
        return await self._get(path, items(ScoreSeries.of, "series"), metric=metric, split=split)

    async def best(
        self, run_id: str, *, wait_newer_than: int | None = None, timeout: float | None = None
    ) -> Best | None:
        """Return the best candidate so far; `None` before one is evaluated.

        With `wait_newer_than`, the `sequence` of a known best candidate, wait for a newer one: `timeout` seconds, or 30
        without it. Return `None` if no newer one appears.
        """
        deadline = self._policy.now() + (requests.LONG_POLL_SECONDS if timeout is None else timeout)
        while True:
            left = max(0.0, deadline - self._policy.now())
            reply = await self._answer(requests.best(run_id, wait_newer_than, left), accepted=404)
            found = parse_best(reply, self.base_url)
            if wait_newer_than is None or (found is not None and found.sequence > wait_newer_than):
                return found
            if reply.headers.get("run-is-terminal") == "true" or self._policy.now() >= deadline:
                return None
            # A service that does not support the wait is not polled without a delay.
            await self._sleep(min(MIN_POLL_SECONDS, max(0.0, deadline - self._policy.now())))

    # Views.

    async def lineage(self, run_id: str) -> Lineage:
        """Return all candidates as a tree, with the checks of a search in sprints."""
        return await self._get(run_path(run_id, "lineage"), Lineage.of)

    async def rows(
        self,
        run_id: str,
        *,
        split: str | None = None,
        metric: str | None = None,
        order: str | None = None,
        candidates: str | None = None,
        limit: int | None = None,
        offset: int | None = None,
        candidate_limit: int | None = None,
        candidate_offset: int | None = None,
    ) -> RowTable:
        """Return a window of the table of rows and candidates.

        `order` is `unsolved`, `gain` or `id`. `candidates` is `all` or ids separated by commas; without it, the columns
        are the initial, the best and the accepted candidates.
        """
        window = {"limit": limit, "offset": offset}
        columns = {"candidates": candidates, "candidate_limit": candidate_limit, "candidate_offset": candidate_offset}
        path = run_path(run_id, "rows")
        return await self._get(path, row_table, split=split, metric=metric, order=order, **window, **columns)

    def turns(self, run_id: str, *, page_size: int = 100) -> AsyncGenerator[Turn]:
        """Yield the proposer turns in order."""
        return self._pages(run_path(run_id, "turns"), Turn.of, next_page_cursor, limit=page_size)

    async def turn(self, run_id: str, turn: int | str) -> TurnDetail:
        """Return one proposer turn by its number, from 1, with its answer and its transcript."""
        return await self._get(run_path(run_id, "turns", str(turn)), TurnDetail.of)

    async def compare(
        self,
        run_id: str,
        other_run_id: str,
        *,
        candidate_id: str | None = None,
        other_candidate_id: str | None = None,
    ) -> Comparison:
        """Compare the best candidates of two runs, or two candidates of one run."""
        path = run_path(run_id, "compare", other_run_id)
        named = {"candidate_id": candidate_id, "other_candidate_id": other_candidate_id}
        return await self._get(path, Comparison.of, **named)

    # Artifacts.

    async def artifacts(self, run_id: str) -> tuple[Artifact, ...]:
        """Return the artifacts that the run has written so far."""
        return await self._get(run_path(run_id, "artifacts"), items(Artifact.of))

    async def artifact(self, run_id: str, name: str) -> bytes:
        """Return the content of an artifact; check its digest if the service sends one."""
        with io.BytesIO() as out:
            await self._fetch(requests.artifact(run_id, name), out)
            return out.getvalue()

    async def report(self, run_id: str) -> str:
        """Return the report of a run in any state, as one HTML file."""
        with io.BytesIO() as out:
            await self._fetch(requests.report(run_id), out)
            return out.getvalue().decode()

    async def download(self, run_id: str, name: str, path: str | PathLike[str]) -> Path:
        """Download an artifact to a path atomically; check its digest if the service sends one."""
        with write_atomically(Path(path)) as out:
            await self._fetch(requests.artifact(run_id, name), out)
        return Path(path)

    # Workers.

    async def run_next(
        self, *, worker_id: str | None = None, lease_seconds: float | None = None, timeout: float | None = None
    ) -> RunNextResult:
        """Claim the next run request and execute its run. This takes as long as the run, at most `timeout` seconds."""
        body = {"worker_id": worker_id, "lease_seconds": lease_seconds}
        return await self._call(
            requests.post("/worker/run-next", body, lambda _client_timeout: timeout), RunNextResult.of
        )

    async def tick(
        self, *, worker_id: str | None = None, lease_seconds: float | None = None, timeout: float | None = None
    ) -> TickResult:
        """Execute one unit of work; `timeout` limits its duration in seconds."""
        body = {"worker_id": worker_id, "lease_seconds": lease_seconds}
        return await self._call(requests.post("/worker/tick", body, lambda _client_timeout: timeout), TickResult.of)

    async def recover(self) -> tuple[RequestEntry, ...]:
        """Return run requests with an expired lease to the queue."""
        read = items(RequestEntry.of, "recovered_run_requests")
        return await self._call(requests.post("/worker/recover", {}), read)

    # HTTP.

    async def _get(self, path: str, read: Callable[[Any], T], **params: object) -> T:
        return await self._call(requests.get(path, **params), read)

    async def _control(self, run_id: str, action: str, **body: object) -> ControlResult:
        return await self._call(requests.post(run_path(run_id, action), body), ControlResult.of)

    async def _call(self, request: Request, read: Callable[[Any], T], *, patience: float | None = None) -> T:
        """Send a request and parse its JSON answer."""
        reply = await self._answer(request, patience=patience)
        return parse_answer(lambda known: read(known.json()), reply, self.base_url, reply)

    async def _answer(self, request: Request, *, patience: float | None = None, accepted: int = 200) -> Reply:
        """Send a request until its status is 200 or `accepted`; retry a busy service for `patience` seconds."""
        tries = self._policy.tries(patience=patience)
        while True:
            outcome = await self._send(request)
            if isinstance(outcome, Reply) and (outcome.status < 300 or outcome.status in (304, accepted)):
                return outcome
            await self._sleep(tries.pause(request, outcome))

    async def _pages(
        self, path: str, read: Callable[[Any], T], more: Callable[[dict[str, Any]], dict[str, Any]], **params: object
    ) -> AsyncGenerator[T]:
        """Yield the items of every page; `more` returns the query parameters of the next page."""
        known: dict[str, object] = {}
        while known != params:
            known = params
            page = await self._get(path, lambda page: (page["items"], more(page)), **params)
            for item in page[0]:
                yield parse_answer(read, item, self.base_url)
            params = {**params, **page[1]}

    async def _fetch(self, request: Request, out: BinaryIO) -> None:
        """Write the body of an answer to a file and check its digest."""
        tries = self._policy.tries()
        while True:
            outcome: Reply | TransportFailure
            try:
                async with self._open_stream(request) as (outcome, chunks):
                    if outcome.status == 200:
                        out.seek(0)
                        out.truncate()
                        digest = hashlib.sha256()
                        async for chunk in chunks:
                            digest.update(chunk)
                            out.write(chunk)
                        check_digest(digest.hexdigest(), outcome, request.path, self.base_url)
                        return
            except TransportFailure as failure:
                outcome = failure
            await self._sleep(tries.pause(request, outcome))

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _send(self, request: Request) -> Reply | TransportFailure:
        """Send a request and return the reply, whatever its status."""
        try:
            response = await self._http.send(request.build(self._http, *self._timeouts))
        except self._httpx.RequestError as problem:
            return TransportFailure.of(problem)
        return Reply(response.status_code, response.headers, response.content)

    @asynccontextmanager
    async def _open_stream(self, request: Request) -> AsyncGenerator[tuple[Reply, AsyncIterator[bytes]]]:
        """Send a request and yield the head of its reply; the body of a 200 is streamed."""
        try:
            response = await self._http.send(request.build(self._http, *self._timeouts), stream=True)
            try:
                content = b"" if response.status_code == 200 else await response.aread()
                yield Reply(response.status_code, response.headers, content), response.aiter_bytes()
            finally:
                with suppress(RuntimeError):
                    # The event loop may be closed by now.
                    await response.aclose()
        except self._httpx.RequestError as problem:
            raise TransportFailure.of(problem) from problem
