"""A run with a service, read over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from synth_optimizers.cli.faults import Refusal
from synth_optimizers.cli.local import ARTIFACTS, LEFT_OUT
from synth_optimizers.cli.session import now_and_then
from synth_optimizers.cli.words import moment
from synth_optimizers.errors import OptimizerHttpError, error_of
from synth_optimizers.events import RunEvent
from synth_optimizers.status import RunStatus

if TYPE_CHECKING:
    from synth_optimizers.client import Acknowledgement, Client, RequestEntry, RunDetail

LOOK = 2.0
RESTART = 10
"""How often a watch tries to go on: a service that is started again needs half a minute at most."""
MANIFEST = "result_manifest.json"


def split_address(run: str) -> tuple[str, str]:
    """Return the address of the service and the id of the run that a URL names."""
    parts = urlsplit(run)
    before, found, run_id = parts.path.rstrip("/").rpartition("/runs/")
    if not found or unquote(run_id) in ("", ".", "..") or "/" in run_id:
        raise Refusal(f"{run} is not the URL of a run", "Write it as http://HOST:PORT/runs/RUN_ID.")
    return f"{parts.scheme}://{parts.netloc}{before}", unquote(run_id)


def state_of_request(request: RequestEntry, run: RunStatus | None) -> str:
    """Return the state of a run in one word: that of its request, and while it is worked on its own."""
    return run.state if run is not None and request.status in ("leased", "running") else request.status


def status_of_request(request: RequestEntry, run: RunStatus | None) -> RunStatus:
    """Return the status of a run; one that has not begun has used nothing, and a request that is over has the say."""
    if run is not None and request.is_terminal:
        ended = request.finished_at or run.finished_at
        return replace(run, state=request.status, is_over=True, failure=request.error, finished_at=ended)
    if run is not None:
        return run
    known: dict[str, Any] = {each.name: 0 if each.type == "int" else None for each in fields(RunStatus)}
    known |= {"run_id": request.run_id, "run_dir": request.run_dir or "", "state": request.status, "limits": {}}
    known |= {"is_over": request.is_terminal, "failure": request.error, "finished_at": request.finished_at}
    return RunStatus.from_native({**known, "cost_usd": request.cost_usd, "started_at": request.started_at})


class ServiceRun:
    """The run of a service."""

    kind = "run_url"

    def __init__(self, client: Client, run_id: str) -> None:
        self.client = client
        self.name = run_id
        self.place = f"{client.base_url}/runs/{quote(run_id, safe='')}"
        self._known: RunDetail | None = None
        self.waiting = now_and_then(self._rollouts_waiting, LOOK)
        """The answers that wait for their turn; asked again and again while it is followed."""

    def detail(self) -> RunDetail:
        """Ask for everything about it, once for one command."""
        if self._known is None:
            self._known = self.client.run(self.name)
        return self._known

    def status(self) -> RunStatus:
        """Return where it is."""
        detail = self.detail()
        return status_of_request(detail.request, detail.run)

    def state(self) -> str:
        """Return its state in one word."""
        detail = self.detail()
        return state_of_request(detail.request, detail.run)

    def notes(self) -> list[tuple[str, str]]:
        """Return who works on it, or why nobody does."""
        request = self.detail().request
        lines = [] if request.waiting is None else [("waits", request.waiting.message)]
        return lines if request.worker_id is None else [("worker", request.worker_id), *lines]

    def summary(self) -> dict[str, Any]:
        """Return overview, candidates, frontier and gains."""
        detail = self.detail()
        begun = detail.run is not None
        candidates = [known.to_dict() for known in self.client.candidates(self.name)] if begun else []
        # The manifest of the result has the gains.
        has_result = detail.status == "completed" and MANIFEST in self.artifacts()
        result = json.loads(self.client.artifact(self.name, MANIFEST)) if has_result else {}
        return {
            "overview": self.status().to_dict(),
            "candidates": candidates,
            "frontier": sorted(known["candidate_id"] for known in candidates if known.get("on_frontier")),
            "usage": detail.usage,
            "train_gain": result.get("train_gain"),
            "heldout_gain": result.get("heldout_gain"),
            "config": detail.config,
            "request": detail.request.to_dict(),
            "models": detail.models,
        }

    def best(self) -> dict[str, Any] | None:
        """Return its best candidate."""
        found = self.client.best(self.name) if self.detail().run is not None else None
        return None if found is None else found.to_dict()

    def artifacts(self) -> list[str]:
        """Return the names of its files, those that people know first."""
        names = [known.name for known in self.client.artifacts(self.name)] if self.detail().run is not None else []
        known = [name for name in ARTIFACTS if name in names]
        return known + sorted(set(names) - set(known))

    def located(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self.place}/artifacts/{quote(name, safe='')}"

    def files(self, scratch: Path) -> Iterator[tuple[str, tuple[Path, float]]]:
        """Fetch every file, each with its digest checked; their time is that of the last event."""
        status = self.status()
        last = status.finished_at or status.updated_at or status.started_at
        for name in sorted(self.artifacts()):
            parts = PurePosixPath(name).parts
            if parts[-1:] and parts[-1] in LEFT_OUT:
                continue
            if not parts or name.startswith("/") or ".." in parts or "\\" in name:
                message = f"{self.client.base_url} names a file {name!r} that lies outside the run"
                raise error_of(OptimizerHttpError, message)
            path = scratch.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.client.download(self.name, name, path)
            yield name, (path, moment(last) if last else 0.0)

    def follow(self) -> Iterator[RunEvent]:
        """Yield its events as they happen."""
        yield from self.client.watch(self.name, retries=RESTART)
        # What was known before it ended is old.
        self._known = None

    def _rollouts_waiting(self) -> int:
        run = self.client.run(self.name).run
        return 0 if run is None else run.rollouts_waiting

    def ask(self, kind: str, reason: str) -> dict[str, Any]:
        """Ask the service."""
        answer: Acknowledgement = getattr(self.client, kind)(self.name, reason=reason)
        return {**answer.to_dict(), "state": answer.status, "reason": answer.message or None}
