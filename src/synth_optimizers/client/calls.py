"""Every call to a service as a conversation: what is sent and how the answer is read, for both clients."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from os import PathLike
from typing import Any, BinaryIO, TypeVar

from synth_optimizers.client import requests
from synth_optimizers.client.effects import Flow
from synth_optimizers.client.entries import RequestEntry, RunDetail, Submission
from synth_optimizers.client.flows import Flows
from synth_optimizers.client.models import Artifact, Best, Candidate, Frontier, Rollout, ScoreSeries
from synth_optimizers.client.record import items
from synth_optimizers.client.records import Acknowledgement, Health, Pruned, Readiness, Step, WorkerRun, WorkerTick
from synth_optimizers.client.requests import moment
from synth_optimizers.preflight import CheckReport

__all__ = ["Calls"]

T = TypeVar("T")


class Calls:
    """One function for each call; the methods of `Client` say what they do."""

    def __init__(self, flows: Flows) -> None:
        self._flows = flows
        self._wait = flows.timeout

    # The service itself.

    def health(self) -> Flow[Health]:
        return self._get("/health", Health.of)

    def ready(self) -> Flow[Readiness]:
        return self._get("/ready", Readiness.of)

    def status(self) -> Flow[dict[str, Any]]:
        return self._get("/status", dict)

    def workspace(self) -> Flow[dict[str, Any]]:
        return self._get("/workspace", dict)

    def metrics(self) -> Flow[str]:
        return self._flows.text(requests.get("/metrics", timeout=self._wait))

    def prune(
        self, *, older_than: str | datetime | None = None, status: Sequence[str] = (), dry_run: bool = True
    ) -> Flow[Pruned]:
        body = {"older_than": moment(older_than), "status": list(status), "dry_run": dry_run}
        return self._post("/workspace/prune", body, Pruned.of)

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
    ) -> Flow[Submission]:
        key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
        options = {
            "priority": priority,
            "auto_start": auto_start,
            "manual_step": manual_step,
            "allow_unverified": allow_unverified,
        }
        request = requests.submission(
            "/runs", config_path, config, options, overrides=overrides, timeout=self._wait, idempotency_key=key
        )
        return self._flows.submit(request, key, patience=wait_for_capacity)

    def preflight(
        self,
        config_path: str | PathLike[str] | None = None,
        *,
        config: Mapping[str, Any] | str | None = None,
        allow_unverified: bool = False,
        overrides: Sequence[str] = (),
    ) -> Flow[CheckReport]:
        options = {"allow_unverified": allow_unverified}
        path = "/runs/preflight"
        request = requests.submission(path, config_path, config, options, overrides=overrides, timeout=self._wait)
        return self._flows.call(request, CheckReport.from_native)

    def runs(self, *, state: str | None = None, page_size: int = 50) -> Flow[None]:
        request = requests.get("/runs", timeout=self._wait, state=state, limit=page_size)
        return self._flows.pages(request, RequestEntry.of)

    def run(self, run_id: str) -> Flow[RunDetail]:
        return self._get(requests.run_path(run_id), RunDetail.of)

    def delete(self, run_id: str) -> Flow[None]:
        request = replace(requests.get(requests.run_path(run_id), timeout=self._wait), method="DELETE")
        return self._flows.nothing(request)

    def wait(self, run_id: str, *, timeout: float | None = None) -> Flow[RunDetail]:
        return self._flows.wait(run_id, timeout)

    # Wishes.

    def cancel(self, run_id: str, *, reason: str | None = None) -> Flow[Acknowledgement]:
        return self._act(run_id, "cancel", reason=reason)

    def stop(self, run_id: str, *, reason: str | None = None) -> Flow[Acknowledgement]:
        return self._act(run_id, "stop", reason=reason)

    def pause(
        self, run_id: str, *, timeout_seconds: int | None = None, reason: str | None = None
    ) -> Flow[Acknowledgement]:
        return self._act(run_id, "pause", timeout_seconds=timeout_seconds, reason=reason)

    def resume(self, run_id: str, *, reason: str | None = None) -> Flow[Acknowledgement]:
        return self._act(run_id, "resume", reason=reason)

    def step(self, run_id: str, *, timeout: float | None = None) -> Flow[Step]:
        request = requests.act(run_id, "step", timeout=timeout)
        return self._flows.call(request, Step.of)

    # Events.

    def events(self, run_id: str, *, after: int = -1, page_size: int = 500) -> Flow[None]:
        return self._flows.events(run_id, after, page_size)

    def watch(self, run_id: str, *, after: int = -1, retries: int | None = None) -> Flow[None]:
        return self._flows.watch(run_id, after, retries)

    # What was found.

    def candidates(self, run_id: str, *, status: str | None = None, page_size: int = 100) -> Flow[None]:
        path = requests.run_path(run_id, "candidates")
        request = requests.get(path, timeout=self._wait, status=status, limit=page_size)
        return self._flows.pages(request, Candidate.of)

    def candidate(self, run_id: str, candidate_id: str) -> Flow[Candidate]:
        return self._get(requests.run_path(run_id, "candidates", candidate_id), Candidate.of)

    def rollouts(
        self,
        run_id: str,
        *,
        candidate_id: str | None = None,
        stage: str | None = None,
        status: str | None = None,
        split: str | None = None,
        page_size: int = 100,
    ) -> Flow[None]:
        kept = {"candidate_id": candidate_id, "stage": stage, "status": status, "split": split}
        path = requests.run_path(run_id, "rollouts")
        request = requests.get(path, timeout=self._wait, limit=page_size, **kept)
        return self._flows.pages(request, Rollout.of)

    def rollout(self, run_id: str, rollout_id: str | int, *, trace: bool = False) -> Flow[Rollout]:
        include = "trace" if trace else None
        return self._get(requests.run_path(run_id, "rollouts", str(rollout_id)), Rollout.of, include=include)

    def frontier(self, run_id: str) -> Flow[Frontier]:
        return self._get(requests.run_path(run_id, "frontier"), Frontier.of)

    def scores(self, run_id: str, *, since: int | None = None, page_size: int = 100) -> Flow[None]:
        return self._flows.scores(run_id, since, page_size)

    def score_series(
        self, run_id: str, *, metric: str | None = None, split: str | None = None
    ) -> Flow[tuple[ScoreSeries, ...]]:
        path = requests.run_path(run_id, "scores", "series")
        return self._get(path, items(ScoreSeries.of, "series"), metric=metric, split=split)

    def best(
        self, run_id: str, *, wait_newer_than: int | None = None, timeout: float | None = None
    ) -> Flow[Best | None]:
        return self._flows.best(run_id, wait_newer_than, timeout)

    def artifacts(self, run_id: str) -> Flow[tuple[Artifact, ...]]:
        return self._get(requests.run_path(run_id, "artifacts"), items(Artifact.of))

    # Workers.

    def run_next(
        self, *, worker_id: str | None = None, lease_seconds: float | None = None, timeout: float | None = None
    ) -> Flow[WorkerRun]:
        body = {"worker_id": worker_id, "lease_seconds": lease_seconds}
        request = requests.post("/worker/run-next", body, timeout=timeout)
        return self._flows.call(request, WorkerRun.of)

    def tick(
        self, *, worker_id: str | None = None, lease_seconds: float | None = None, timeout: float | None = None
    ) -> Flow[WorkerTick]:
        body = {"worker_id": worker_id, "lease_seconds": lease_seconds}
        request = requests.post("/worker/tick", body, timeout=timeout)
        return self._flows.call(request, WorkerTick.of)

    def recover(self) -> Flow[tuple[RequestEntry, ...]]:
        return self._post("/worker/recover", {}, items(RequestEntry.of, "recovered_run_requests"))

    def artifact(self, run_id: str, name: str, out: BinaryIO) -> Flow[str]:
        return self._flows.download(requests.artifact(run_id, name, timeout=self._wait), out)

    def _get(self, path: str, read: Callable[[Any], T], **params: object) -> Flow[T]:
        return self._flows.call(requests.get(path, timeout=self._wait, **params), read)

    def _post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T]) -> Flow[T]:
        return self._flows.call(requests.post(path, body, timeout=self._wait), read)

    def _act(self, run_id: str, action: str, **body: object) -> Flow[Acknowledgement]:
        request = requests.act(run_id, action, timeout=self._wait, **body)
        return self._flows.call(request, Acknowledgement.of)
