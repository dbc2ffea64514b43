"""A run of a service, read over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from synth_optimizers.cli.errors import CommandError
from synth_optimizers.cli.formatting import epoch_seconds
from synth_optimizers.cli.local import ARTIFACTS, EXCLUDED_FILES
from synth_optimizers.cli.session import EventFeed, cached_poll
from synth_optimizers.errors import OptimizerHttpError, error_of
from synth_optimizers.events import RunEvent
from synth_optimizers.status import RunStatus

if TYPE_CHECKING:
    from synth_optimizers.cli.source import RunSource
    from synth_optimizers.client import Client, ControlResult, RequestEntry, RunDetail

STATUS_POLL_SECONDS = 2.0
WATCH_RETRIES = 10
"""Reconnection attempts of a watch, enough for a service that restarts within half a minute."""
MANIFEST = "result_manifest.json"


def split_address(run: str) -> tuple[str, str]:
    """Split the URL of a run into the address of the service and the run id."""
    parts = urlsplit(run)
    before, found, run_id = parts.path.rstrip("/").rpartition("/runs/")
    if not found or unquote(run_id) in ("", ".", "..") or "/" in run_id:
        raise CommandError(f"{run} is not the URL of a run", "Write it as http://HOST:PORT/runs/RUN_ID.")
    return f"{parts.scheme}://{parts.netloc}{before}", unquote(run_id)


def request_state(request: RequestEntry, run: RunStatus | None) -> str:
    """Return the state of a run in one word.

    While a worker executes the run this is the state of the run, otherwise the status of its run request.
    """
    return run.state if run is not None and request.status in ("leased", "running") else request.status


def request_status(request: RequestEntry, run: RunStatus | None) -> RunStatus:
    """Return the status of a run.

    Before the run starts, its usage is zero. Once the run request is final, its status decides the state.
    """
    if run is not None and request.is_terminal:
        ended = run.finished_at or request.finished_at
        return replace(run, state=request.status, is_terminal=True, failure=request.error, finished_at=ended)
    if run is not None:
        return run
    known: dict[str, Any] = {each.name: 0 if each.type == "int" else None for each in fields(RunStatus)}
    known |= {"run_id": request.run_id, "run_dir": request.run_dir or "", "state": request.status, "limits": {}}
    known |= {"waiting": [], "shortfalls": []}
    known |= {"is_terminal": request.is_terminal, "failure": request.error, "finished_at": request.finished_at}
    return RunStatus.from_native({**known, "cost_usd": request.cost_usd, "started_at": request.started_at})


class ServiceRun:
    """A run of a service."""

    kind = "run_url"

    def __init__(self, client: Client, run_id: str) -> None:
        self.client = client
        self.name = run_id
        self.place = f"{client.base_url}/runs/{quote(run_id, safe='')}"
        self._detail: RunDetail | None = None
        self.waiting = cached_poll(self._rollouts_waiting, STATUS_POLL_SECONDS)
        """The number of answers that wait to become events, read again at each poll interval."""

    def detail(self) -> RunDetail:
        """Fetch everything about the run, once per command."""
        if self._detail is None:
            self._detail = self.client.run(self.name)
        return self._detail

    def status(self) -> RunStatus:
        """Return the status of the run."""
        detail = self.detail()
        return request_status(detail.request, detail.run)

    def state(self) -> str:
        """Return the state of the run in one word."""
        detail = self.detail()
        return request_state(detail.request, detail.run)

    def notes(self) -> list[tuple[str, str]]:
        """Return which worker executes the run, or why it waits."""
        request = self.detail().request
        lines = [] if request.waiting is None else [("waits", request.waiting.message)]
        return lines if request.worker_id is None else [("worker", request.worker_id), *lines]

    def summary(self) -> dict[str, Any]:
        """Return overview, candidates, frontier and gains."""
        detail = self.detail()
        begun = detail.run is not None
        candidates = [known.to_dict() for known in self.client.candidates(self.name)] if begun else []
        # The result manifest has the gains.
        has_result = detail.status == "completed" and MANIFEST in self.artifacts()
        result = json.loads(self.client.artifact(self.name, MANIFEST)) if has_result else {}
        return {
            "overview": self.status().to_dict(),
            "candidates": candidates,
            "frontier": sorted(known["candidate_id"] for known in candidates if known.get("on_frontier")),
            "usage": detail.usage,
            "train_gain": result.get("train_gain"),
            "heldout_gain": result.get("heldout_gain"),
            "claim": result.get("claim"),
            "rollouts_by_purpose": result.get("rollouts_by_purpose"),
            "config": detail.config,
            "request": detail.request.to_dict(),
            "models": detail.models,
        }

    def best(self) -> dict[str, Any] | None:
        """Return the best candidate."""
        found = self.client.best(self.name) if self.detail().run is not None else None
        return None if found is None else found.to_dict()

    def lineage(self) -> dict[str, Any]:
        """Return all candidates as a tree."""
        return self.client.lineage(self.name).to_dict()

    def report(self) -> str:
        """Return the report as one HTML file."""
        return self.client.report(self.name)

    def rows(self, **query: Any) -> dict[str, Any]:  # noqa: ANN401 (the parameters of the route)
        """Return a window of the table of rows and candidates."""
        return self.client.rows(self.name, **query).to_dict()

    def turns(self) -> list[dict[str, Any]]:
        """Return all proposer turns."""
        return [known.to_dict() for known in self.client.turns(self.name)]

    def turn(self, turn: str) -> dict[str, Any]:
        """Return one proposer turn with its transcript."""
        return self.client.turn(self.name, turn).to_dict()

    def compare(
        self, other: RunSource, *, candidate_id: str | None = None, other_candidate_id: str | None = None
    ) -> dict[str, Any]:
        """Compare this run with another one of the same service."""
        if not isinstance(other, ServiceRun) or other.client.base_url != self.client.base_url:
            raise CommandError(f"{other.place} is not a run of {self.client.base_url}", "Name runs of one service.")
        names = {"candidate_id": candidate_id, "other_candidate_id": other_candidate_id}
        return self.client.compare(self.name, other.name, **names).to_dict()

    def check_deletable(self) -> None:
        """Refuse to delete a run that has not ended."""
        request = self.detail().request
        if not request.is_terminal:
            hint = f"Cancel it first: synth-optimizers runs cancel {self.place}"
            raise CommandError(f"run {self.name} is {request.status}; only an ended run can be deleted", hint)

    def delete(self) -> None:
        """Delete the run, and its directory if the service created it."""
        self.client.delete(self.name)

    def artifacts(self) -> list[str]:
        """Return the names of the artifacts, the best-known ones first."""
        names = [known.name for known in self.client.artifacts(self.name)] if self.detail().run is not None else []
        known = [name for name in ARTIFACTS if name in names]
        return known + sorted(set(names) - set(known))

    def artifact_location(self, name: str) -> str:
        """Return the URL of an artifact."""
        return f"{self.place}/artifacts/{quote(name, safe='')}"

    def files(self, scratch: Path) -> Iterator[tuple[str, tuple[Path, float]]]:
        """Download every artifact and check its digest. Their modification time is that of the last event."""
        status = self.status()
        last = status.finished_at or status.updated_at or status.started_at
        for name in sorted(self.artifacts()):
            parts = PurePosixPath(name).parts
            if parts[-1:] and parts[-1] in EXCLUDED_FILES:
                continue
            if not parts or name.startswith("/") or ".." in parts or "\\" in name:
                message = f"{self.client.base_url} lists a file {name!r} outside the run directory"
                raise error_of(OptimizerHttpError, message)
            path = scratch.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.client.download(self.name, name, path)
            yield name, (path, epoch_seconds(last) if last else 0.0)

    def feed(self) -> EventFeed:
        """Return the events as they happen."""
        return EventFeed(self._events())

    def _events(self) -> Iterator[RunEvent]:
        yield from self.client.watch(self.name, retries=WATCH_RETRIES)
        # Details fetched before the end are out of date.
        self._detail = None

    def _rollouts_waiting(self) -> int:
        run = self.client.run(self.name).run
        return 0 if run is None else run.rollouts_waiting

    def send_control(self, kind: str, reason: str, **options: object) -> dict[str, Any]:
        """Send a control request to the service."""
        answer: ControlResult = getattr(self.client, kind)(self.name, reason=reason, **options)
        return {**answer.to_dict(), "state": answer.status, "reason": answer.message or None}
