"""What a service says about requests and their runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from synth_optimizers.client.record import Record, part, parts
from synth_optimizers.client.refusals import blocker_of
from synth_optimizers.preflight import Blocker
from synth_optimizers.status import RunStatus


@dataclass(frozen=True, slots=True)
class Waiting(Record):
    """Why a request is not worked on."""

    reason: str
    """`queue`, `container_busy`, `cache_busy`, `manual_step`, `auto_start_off`, `paused` or `stopping`."""
    message: str
    """The reason in words."""
    since: str | None = None
    """Since when."""
    next_check_at: str | None = None
    """By when it goes on by itself at the latest, where that is known: the end of a lease or of a pause."""


@dataclass(frozen=True, slots=True)
class RequestEntry(Record):
    """A request in the queue: which run it is for, who works on it, and what came of it."""

    request_id: str
    """The name of the request."""
    run_id: str
    """The name of its run."""
    status: str
    """`queued`, `leased`, `running`, `paused`, `completed`, `failed` or `cancelled`."""
    is_terminal: bool
    """Whether the status is final."""
    priority: int = 0
    """Higher ones are claimed first."""
    auto_start: bool = True
    """Whether the workers of the service claim it by themselves."""
    manual_step: bool = False
    """Whether it goes on only by steps."""
    config_path: str | None = None
    """The file that it was submitted with."""
    config_digest: str | None = field(default=None, repr=False)
    """The digest of its configuration."""
    container_url: str | None = None
    """The container, which serves one run at a time."""
    cache_mode: str | None = field(default=None, repr=False)
    """`off`, `readwrite` or `readonly`."""
    cache_namespace: str | None = field(default=None, repr=False)
    """The part of the cache, which serves one run at a time."""
    output_dir: str | None = field(default=None, repr=False)
    """The directory that holds the runs."""
    run_dir: str | None = None
    """The directory of the run, where the service runs."""
    idempotency_key: str | None = field(default=None, repr=False)
    """The key that it was submitted with."""
    submitted_at: str | None = None
    """When it was taken."""
    leased_at: str | None = field(default=None, repr=False)
    """When it was claimed."""
    lease_expires_at: str | None = field(default=None, repr=False)
    """When the claim ends unless its worker is heard of."""
    pause_expires_at: str | None = field(default=None, repr=False)
    """When a pause ends in a cancellation."""
    started_at: str | None = None
    """When its run began."""
    finished_at: str | None = None
    """When it ended."""
    updated_at: str | None = field(default=None, repr=False)
    """When it changed last."""
    lease_id: str | None = field(default=None, repr=False)
    """The claim."""
    worker_id: str | None = None
    """The worker that holds it."""
    fencing_token: int = field(default=0, repr=False)
    """The number of its latest claim; the next one is higher. 0: never claimed."""
    attempts: int = field(default=0, repr=False)
    """How often it was claimed."""
    recoveries: int = field(default=0, repr=False)
    """How often its worker was lost."""
    run_workspace_db_path: str | None = field(default=None, repr=False)
    """The workspace of its run."""
    result_manifest_path: str | None = field(default=None, repr=False)
    """The manifest of its result."""
    best_candidate_id: str | None = None
    """The best candidate of a run that is over."""
    cost_usd: float | None = None
    """What was paid; `None` is unknown."""
    usage: dict[str, Any] | None = field(default=None, repr=False)
    """Tokens and calls."""
    result: dict[str, Any] | None = field(default=None, repr=False)
    """The result of the run."""
    error: dict[str, Any] | None = None
    """Why it failed or was cancelled."""
    waiting: Waiting | None = field(default=None, metadata=part(Waiting.of))
    """Why nobody works on it."""


@dataclass(frozen=True, slots=True)
class Submission(Record):
    """A run that the service has taken, durably."""

    run_id: str
    """The name of the run."""
    request: RequestEntry = field(metadata=part(RequestEntry.of))
    """Its place in the queue."""
    auto_started: bool
    """Whether a worker will claim it."""
    replayed: bool
    """Whether it had been taken before under the same key."""
    warnings: tuple[Blocker, ...] = field(default=(), metadata=parts(blocker_of))
    """What is worth knowing."""


@dataclass(frozen=True, slots=True)
class Origin(Record):
    """One value in effect and where it came from."""

    field: str
    """The dotted path, such as `gepa.minibatch_size`."""
    value: Any
    """The value in effect; a secret is hidden."""
    origin: str
    """Where it came from."""


@dataclass(frozen=True, slots=True)
class Transition(Record):
    """One step of a request along its lifecycle."""

    sequence: int
    """Its place, from the first on."""
    request_id: str
    """The request; a run that is submitted again has several."""
    at: str
    """When."""
    trigger: str
    """What did it."""
    to_status: str
    """The status after it; `to` on the wire."""
    from_status: str | None = None
    """The status before it; `from` on the wire."""
    worker_id: str | None = None
    """The worker that did it."""
    fencing_token: int | None = None
    """Its claim."""
    detail: Any = None
    """More about it."""

    @classmethod
    def of(cls, known: Mapping[str, Any]) -> Self:
        """Read a step; two of its names are no names in Python."""
        return super(Transition, cls).of({**known, "to_status": known["to"], "from_status": known.get("from")})

    def to_dict(self) -> dict[str, Any]:
        """Return the step under the names of the service."""
        names = {"from_status": "from", "to_status": "to"}
        return {names.get(name, name): value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class RunDetail(Record):
    """Everything about one run."""

    request: RequestEntry = field(metadata=part(RequestEntry.of))
    """Its request."""
    run: RunStatus | None = field(metadata=part(RunStatus.from_native))
    """Where it is and what it has used; `None` before it has begun."""
    models: dict[str, Any] = field(default_factory=dict, repr=False)
    """For `policy` and `proposer`: the model that was `requested` and the one in effect."""
    config: dict[str, Any] = field(default_factory=dict, repr=False)
    """The configuration in effect; secrets are hidden."""
    origins: tuple[Origin, ...] = field(default=(), repr=False, metadata=parts(Origin.of))
    """Where each value came from."""
    usage: dict[str, Any] | None = field(default=None, repr=False)
    """Tokens and calls."""
    history: tuple[Transition, ...] = field(default=(), repr=False, metadata=parts(Transition.of))
    """The steps of its request."""

    @property
    def run_id(self) -> str:
        """The name of the run."""
        return self.request.run_id

    @property
    def status(self) -> str:
        """The status of its request."""
        return self.request.status

    @property
    def is_over(self) -> bool:
        """Whether the status is final."""
        return self.request.is_terminal

    @property
    def error(self) -> dict[str, Any] | None:
        """Why it did not end well."""
        return self.request.error

    def to_dict(self) -> dict[str, Any]:
        """Return the details as plain objects."""
        return {**asdict(self), "history": [each.to_dict() for each in self.history]}
