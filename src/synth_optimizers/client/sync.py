"""`Client`: a service as Python calls it."""

# Generated from aio.py by tools/unasync: change that file.

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from synth_optimizers.arriving import arriving
from synth_optimizers.client import requests
from synth_optimizers.client.entries import RequestEntry, RunDetail, Submission
from synth_optimizers.client.models import Artifact, Best, Candidate, Frontier, Rollout, ScoreRecord, ScoreSeries
from synth_optimizers.client.options import ADDRESS, Options
from synth_optimizers.client.record import items
from synth_optimizers.client.records import Acknowledgement, Health, Pruned, Readiness, Step, WorkerRun, WorkerTick
from synth_optimizers.client.requests import run_path
from synth_optimizers.client.sync_session import Session
from synth_optimizers.events import RunEvent
from synth_optimizers.preflight import CheckReport

__all__ = ["Client"]

T = TypeVar("T")


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
        options = Options.of(base_url, token=token, timeout=timeout, connect_timeout=connect_timeout, retries=retries)
        self._session = Session(options)
        self.base_url = options.base_url

    def __repr__(self) -> str:
        return f"Client({self.base_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

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
        reply = self._session.answer(requests.get("/metrics", timeout=self._session.timeout))
        return reply.content.decode()

    def prune(
        self, *, older_than: str | datetime | None = None, status: Sequence[str] = (), dry_run: bool = True
    ) -> Pruned:
        """Remove runs that are over, with their directories; with `dry_run` only name them."""
        body = {"older_than": requests.moment(older_than), "status": list(status), "dry_run": dry_run}
        return self._post("/workspace/prune", body, Pruned.of, timeout=self._session.timeout)

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
        timeout = self._session.timeout
        request = requests.submission(
            "/runs", config_path, config, options, overrides=overrides, timeout=timeout, idempotency_key=key
        )
        return self._session.submit(request, key, patience=wait_for_capacity)

    def preflight(
        self,
        config_path: str | PathLike[str] | None = None,
        *,
        config: Mapping[str, Any] | str | None = None,
        allow_unverified: bool = False,
        overrides: Sequence[str] = (),
    ) -> CheckReport:
        """Return everything that stands in the way of a run; nothing is stored and nothing is paid for."""
        path, options, timeout = "/runs/preflight", {"allow_unverified": allow_unverified}, self._session.timeout
        request = requests.submission(path, config_path, config, options, overrides=overrides, timeout=timeout)
        return self._session.call(request, CheckReport.from_native)

    def runs(self, *, state: str | None = None, page_size: int = 50) -> Generator[RequestEntry]:
        """Yield the requests, the newest first; `state` keeps those of one status."""
        return self._pages("/runs", RequestEntry.of, state=state, limit=page_size)

    def run(self, run_id: str) -> RunDetail:
        """Return everything about one run."""
        return self._get(run_path(run_id), RunDetail.of)

    def delete(self, run_id: str) -> None:
        """Remove a run that is over; one that is not there is no error."""
        request = requests.get(run_path(run_id), timeout=self._session.timeout)
        self._session.answer(replace(request, method="DELETE"))

    def wait(self, run_id: str, *, timeout: float | None = None) -> RunDetail:
        """Wait until a run is over and return everything about it.

        A run that failed raises the exception of its cause; one that was cancelled raises `CancelledError`.
        `TimeoutError`: it is still going on.
        """
        return self._session.wait(run_id, timeout)

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
        return self._post(run_path(run_id, "step"), {}, Step.of, timeout=timeout)

    # Events.

    def events(self, run_id: str, *, after: int = -1, page_size: int = 500) -> Generator[RunEvent]:
        """Yield the events that are stored, from the one after a number on."""
        return self._session.events(run_id, after, page_size)

    def watch(self, run_id: str, *, after: int = -1, retries: int | None = None) -> Generator[RunEvent]:
        """Yield the events as they happen, each once and in order, until the run is over.

        When the connection breaks, it goes on after the last event that came. `retries` is how often in a row it is
        tried without success; those of the client without it.
        """
        return self._session.watch(run_id, after, retries)

    # What was found.

    def candidates(self, run_id: str, *, status: str | None = None, page_size: int = 100) -> Generator[Candidate]:
        """Yield the candidates; `status` keeps those of one status."""
        return self._pages(run_path(run_id, "candidates"), Candidate.of, status=status, limit=page_size)

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
        return self._pages(run_path(run_id, "rollouts"), Rollout.of, limit=page_size, **kept)

    def rollout(self, run_id: str, rollout_id: str | int, *, trace: bool = False) -> Rollout:
        """Return one rollout by its id or its number, with its trace if wanted."""
        include = "trace" if trace else None
        return self._get(run_path(run_id, "rollouts", str(rollout_id)), Rollout.of, include=include)

    def frontier(self, run_id: str) -> Frontier:
        """Return the candidates that are best on some row."""
        return self._get(run_path(run_id, "frontier"), Frontier.of)

    def scores(self, run_id: str, *, since: int | None = None, page_size: int = 100) -> Generator[ScoreRecord]:
        """Yield the scores in order, while the run goes on as well; `since` keeps those after an event."""
        return self._session.scores(run_id, since, page_size)

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
        return self._session.best(run_id, wait_newer_than, timeout)

    def artifacts(self, run_id: str) -> tuple[Artifact, ...]:
        """Return the files that the run has left so far."""
        return self._get(run_path(run_id, "artifacts"), items(Artifact.of))

    def artifact(self, run_id: str, name: str) -> bytes:
        """Return the content of a file of the run; its digest is checked where the service names one."""
        with io.BytesIO() as out:
            self._session.download(requests.artifact(run_id, name, timeout=self._session.timeout), out)
            return out.getvalue()

    def download(self, run_id: str, name: str, path: str | PathLike[str]) -> Path:
        """Write a file of the run to a path, whole or not at all; its digest is checked where the service names one."""
        with arriving(Path(path)) as out:
            self._session.download(requests.artifact(run_id, name, timeout=self._session.timeout), out)
        return Path(path)

    # Workers.

    def run_next(
        self, *, worker_id: str | None = None, lease_seconds: float | None = None, timeout: float | None = None
    ) -> WorkerRun:
        """Claim the next request and carry its run out; this takes as long as the run, at most `timeout`."""
        body = {"worker_id": worker_id, "lease_seconds": lease_seconds}
        return self._post("/worker/run-next", body, WorkerRun.of, timeout=timeout)

    def tick(
        self, *, worker_id: str | None = None, lease_seconds: float | None = None, timeout: float | None = None
    ) -> WorkerTick:
        """Do one unit of work; `timeout` is how long it may take."""
        body = {"worker_id": worker_id, "lease_seconds": lease_seconds}
        return self._post("/worker/tick", body, WorkerTick.of, timeout=timeout)

    def recover(self) -> tuple[RequestEntry, ...]:
        """Give requests whose worker was lost back to the queue."""
        read = items(RequestEntry.of, "recovered_run_requests")
        return self._post("/worker/recover", {}, read, timeout=self._session.timeout)

    def _get(self, path: str, read: Callable[[Any], T], **params: object) -> T:
        return self._session.call(requests.get(path, timeout=self._session.timeout, **params), read)

    def _post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T], *, timeout: float | None) -> T:
        return self._session.call(requests.post(path, body, timeout=timeout), read)

    def _ask(self, run_id: str, action: str, **body: object) -> Acknowledgement:
        return self._post(run_path(run_id, action), body, Acknowledgement.of, timeout=self._session.timeout)

    def _pages(self, path: str, read: Callable[[Any], T], **params: object) -> Generator[T]:
        return self._session.pages(requests.get(path, timeout=self._session.timeout, **params), read)
