"""`AsyncClient`: a service as coroutines call it."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from synth_optimizers.client.calls import Calls
from synth_optimizers.client.entries import RequestEntry, RunDetail, Submission
from synth_optimizers.client.files import arriving
from synth_optimizers.client.models import Artifact, Best, Candidate, Frontier, Rollout, ScoreRecord, ScoreSeries
from synth_optimizers.client.options import ADDRESS, Options
from synth_optimizers.client.records import Acknowledgement, Health, Pruned, Readiness, Step, WorkerRun, WorkerTick
from synth_optimizers.client.transport import AsyncTransport
from synth_optimizers.events import RunEvent
from synth_optimizers.preflight import CheckReport

__all__ = ["AsyncClient"]


class AsyncClient:
    """`Client` for an event loop: the same calls, each awaited, and the same settings.

    >>> async with AsyncClient("http://127.0.0.1:8879") as client:
    ...     run_id = (await client.submit("gepa.toml")).run_id
    ...     async for event in client.watch(run_id):
    ...         print(event.message)
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
        self._transport = AsyncTransport(options)
        self._calls = Calls(options.flows())
        self.base_url = options.base_url

    def __repr__(self) -> str:
        return f"AsyncClient({self.base_url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.close()

    # The service itself.

    async def health(self) -> Health:
        """Return which process answers."""
        return await self._transport.run(self._calls.health())

    async def ready(self) -> Readiness:
        """Return that runs are taken; raises while the service starts or drains."""
        return await self._transport.run(self._calls.ready())

    async def status(self) -> dict[str, Any]:
        """Return the status of the database of the service: counts, and the newest 200 requests."""
        return await self._transport.run(self._calls.status())

    async def workspace(self) -> dict[str, Any]:
        """Return counts, leases, workers and invariants."""
        return await self._transport.run(self._calls.workspace())

    async def metrics(self) -> str:
        """Return the metrics as Prometheus reads them."""
        return await self._transport.run(self._calls.metrics())

    async def prune(
        self, *, older_than: str | datetime | None = None, status: Sequence[str] = (), dry_run: bool = True
    ) -> Pruned:
        """Remove runs that are over, with their directories; with `dry_run` only name them."""
        return await self._transport.run(self._calls.prune(older_than=older_than, status=status, dry_run=dry_run))

    # Requests.

    async def submit(
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
        """Hand a run over to the service; once this returns, it is stored there."""
        return await self._transport.run(
            self._calls.submit(
                config_path,
                config=config,
                priority=priority,
                auto_start=auto_start,
                manual_step=manual_step,
                allow_unverified=allow_unverified,
                overrides=overrides,
                idempotency_key=idempotency_key,
                wait_for_capacity=wait_for_capacity,
            )
        )

    async def preflight(
        self,
        config_path: str | PathLike[str] | None = None,
        *,
        config: Mapping[str, Any] | str | None = None,
        allow_unverified: bool = False,
        overrides: Sequence[str] = (),
    ) -> CheckReport:
        """Return everything that stands in the way of a run; nothing is stored and nothing is paid for."""
        return await self._transport.run(
            self._calls.preflight(config_path, config=config, allow_unverified=allow_unverified, overrides=overrides)
        )

    def runs(self, *, state: str | None = None, page_size: int = 50) -> AsyncGenerator[RequestEntry]:
        """Yield the requests, the newest first; `state` keeps those of one status."""
        return self._transport.iterate(self._calls.runs(state=state, page_size=page_size))

    async def run(self, run_id: str) -> RunDetail:
        """Return everything about one run."""
        return await self._transport.run(self._calls.run(run_id))

    async def delete(self, run_id: str) -> None:
        """Remove a run that is over; one that is not there is no error."""
        return await self._transport.run(self._calls.delete(run_id))

    async def wait(self, run_id: str, *, timeout: float | None = None) -> RunDetail:
        """Wait until a run is over and return everything about it."""
        return await self._transport.run(self._calls.wait(run_id, timeout=timeout))

    # Wishes.

    async def cancel(self, run_id: str, *, reason: str | None = None) -> Acknowledgement:
        """End a run for good; what was paid for is kept."""
        return await self._transport.run(self._calls.cancel(run_id, reason=reason))

    async def stop(self, run_id: str, *, reason: str | None = None) -> Acknowledgement:
        """Finish a run early: no new search, then the held-out evaluation."""
        return await self._transport.run(self._calls.stop(run_id, reason=reason))

    async def pause(
        self, run_id: str, *, timeout_seconds: int | None = None, reason: str | None = None
    ) -> Acknowledgement:
        """Let a run rest; one that nobody resumes in `timeout_seconds` is cancelled."""
        return await self._transport.run(self._calls.pause(run_id, timeout_seconds=timeout_seconds, reason=reason))

    async def resume(self, run_id: str, *, reason: str | None = None) -> Acknowledgement:
        """Let a run that rests go on."""
        return await self._transport.run(self._calls.resume(run_id, reason=reason))

    async def step(self, run_id: str, *, timeout: float | None = None) -> Step:
        """Do one unit of work of a run that goes on by steps; `timeout` is how long it may take."""
        return await self._transport.run(self._calls.step(run_id, timeout=timeout))

    # Events.

    def events(self, run_id: str, *, after: int = -1, page_size: int = 500) -> AsyncGenerator[RunEvent]:
        """Yield the events that are stored, from the one after a number on."""
        return self._transport.iterate(self._calls.events(run_id, after=after, page_size=page_size))

    def watch(self, run_id: str, *, after: int = -1, retries: int | None = None) -> AsyncGenerator[RunEvent]:
        """Yield the events as they happen, each once and in order, until the run is over."""
        return self._transport.iterate(self._calls.watch(run_id, after=after, retries=retries))

    # What was found.

    def candidates(self, run_id: str, *, status: str | None = None, page_size: int = 100) -> AsyncGenerator[Candidate]:
        """Yield the candidates; `status` keeps those of one status."""
        return self._transport.iterate(self._calls.candidates(run_id, status=status, page_size=page_size))

    async def candidate(self, run_id: str, candidate_id: str) -> Candidate:
        """Return one candidate."""
        return await self._transport.run(self._calls.candidate(run_id, candidate_id))

    def rollouts(
        self,
        run_id: str,
        *,
        candidate_id: str | None = None,
        stage: str | None = None,
        status: str | None = None,
        split: str | None = None,
        page_size: int = 100,
    ) -> AsyncGenerator[Rollout]:
        """Yield the rollouts; the options keep those of one candidate, stage, status or split."""
        return self._transport.iterate(
            self._calls.rollouts(
                run_id, candidate_id=candidate_id, stage=stage, status=status, split=split, page_size=page_size
            )
        )

    async def rollout(self, run_id: str, rollout_id: str | int, *, trace: bool = False) -> Rollout:
        """Return one rollout by its id or its number, with its trace if wanted."""
        return await self._transport.run(self._calls.rollout(run_id, rollout_id, trace=trace))

    async def frontier(self, run_id: str) -> Frontier:
        """Return the candidates that are best on some row."""
        return await self._transport.run(self._calls.frontier(run_id))

    def scores(self, run_id: str, *, since: int | None = None, page_size: int = 100) -> AsyncGenerator[ScoreRecord]:
        """Yield the scores in order, while the run goes on as well; `since` keeps those after an event."""
        return self._transport.iterate(self._calls.scores(run_id, since=since, page_size=page_size))

    async def score_series(
        self, run_id: str, *, metric: str | None = None, split: str | None = None
    ) -> tuple[ScoreSeries, ...]:
        """Return the scores in order, one series for each metric and split."""
        return await self._transport.run(self._calls.score_series(run_id, metric=metric, split=split))

    async def best(
        self, run_id: str, *, wait_newer_than: int | None = None, timeout: float | None = None
    ) -> Best | None:
        """Return the best candidate so far; `None` before one is measured."""
        return await self._transport.run(self._calls.best(run_id, wait_newer_than=wait_newer_than, timeout=timeout))

    async def artifacts(self, run_id: str) -> tuple[Artifact, ...]:
        """Return the files that the run has left so far."""
        return await self._transport.run(self._calls.artifacts(run_id))

    async def artifact(self, run_id: str, name: str) -> bytes:
        """Return the content of a file of the run; its digest is checked where the service names one."""
        with io.BytesIO() as out:
            await self._transport.run(self._calls.artifact(run_id, name, out))
            return out.getvalue()

    async def download(self, run_id: str, name: str, path: str | PathLike[str]) -> Path:
        """Write a file of the run to a path, whole or not at all; its digest is checked where the service names one."""
        with arriving(Path(path)) as out:
            await self._transport.run(self._calls.artifact(run_id, name, out))
        return Path(path)

    # Workers.

    async def run_next(
        self, *, worker_id: str | None = None, lease_seconds: float | None = None, timeout: float | None = None
    ) -> WorkerRun:
        """Claim the next request and carry its run out; this takes as long as the run, at most `timeout`."""
        return await self._transport.run(
            self._calls.run_next(worker_id=worker_id, lease_seconds=lease_seconds, timeout=timeout)
        )

    async def tick(
        self, *, worker_id: str | None = None, lease_seconds: float | None = None, timeout: float | None = None
    ) -> WorkerTick:
        """Do one unit of work; `timeout` is how long it may take."""
        return await self._transport.run(
            self._calls.tick(worker_id=worker_id, lease_seconds=lease_seconds, timeout=timeout)
        )

    async def recover(self) -> tuple[RequestEntry, ...]:
        """Give requests whose worker was lost back to the queue."""
        return await self._transport.run(self._calls.recover())
