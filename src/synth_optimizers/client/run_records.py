"""Run requests and run details as the service returns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from synth_optimizers.client.errors import parse_preflight_finding
from synth_optimizers.client.record import Record, part, parts
from synth_optimizers.preflight import PreflightFinding
from synth_optimizers.status import RunStatus


@dataclass(frozen=True, slots=True)
class Waiting(Record):
    """Why a run request waits."""

    reason: str
    """`queue`, `container_busy`, `cache_busy`, `manual_step`, `auto_start_off`, `paused` or `stopping`."""
    message: str
    """The reason in words."""
    since: str | None = None
    """Since when."""
    deadline_at: str | None = None
    """When a pause with a timeout ends; `None` for other pauses and reasons."""


@dataclass(frozen=True, slots=True)
class RequestEntry(Record):
    """A run request: an entry of the service's queue with its run, worker and outcome."""

    request_id: str
    """The id of the run request."""
    run_id: str
    """The id of its run."""
    status: str
    """`queued`, `leased`, `running`, `paused`, `completed`, `failed` or `cancelled`."""
    is_terminal: bool
    """Whether the status is final."""
    priority: int = 0
    """Higher priorities are claimed first."""
    auto_start: bool = True
    """Whether the workers of the service claim it without a control request."""
    manual_step: bool = False
    """Whether the run advances only by explicit steps."""
    config_path: str | None = None
    """The configuration file it was submitted with."""
    config_digest: str | None = field(default=None, repr=False)
    """The digest of its configuration."""
    container_url: str | None = None
    """The URL of the container, which serves one run at a time."""
    cache_mode: str | None = field(default=None, repr=False)
    """`off`, `readwrite` or `readonly`."""
    cache_namespace: str | None = field(default=None, repr=False)
    """The namespace of the cache, which serves one run at a time."""
    output_dir: str | None = field(default=None, repr=False)
    """The directory that contains the runs."""
    run_dir: str | None = None
    """The directory of the run, on the machine of the service."""
    idempotency_key: str | None = field(default=None, repr=False)
    """The idempotency key it was submitted with."""
    submitted_at: str | None = None
    """When it was submitted."""
    leased_at: str | None = field(default=None, repr=False)
    """When a worker claimed it."""
    lease_expires_at: str | None = field(default=None, repr=False)
    """When the lease expires unless its worker renews it."""
    pause_expires_at: str | None = field(default=None, repr=False)
    """When a pause with a timeout ends and the run is cancelled."""
    started_at: str | None = None
    """When its run started."""
    finished_at: str | None = None
    """When it finished."""
    updated_at: str | None = field(default=None, repr=False)
    """When it last changed."""
    lease_id: str | None = field(default=None, repr=False)
    """The id of the current lease."""
    worker_id: str | None = None
    """The worker that holds the lease."""
    fencing_token: int = field(default=0, repr=False)
    """The fencing token of the latest claim, which grows with each claim; 0 before the first."""
    attempts: int = field(default=0, repr=False)
    """How often it was claimed."""
    recoveries: int = field(default=0, repr=False)
    """How often it was recovered after its worker was lost."""
    run_workspace_db_path: str | None = field(default=None, repr=False)
    """The workspace database of its run."""
    result_manifest_path: str | None = field(default=None, repr=False)
    """The path of the result manifest."""
    best_candidate_id: str | None = None
    """The best candidate of a finished run."""
    cost_usd: float | None = None
    """The cost; `None` is unknown."""
    usage: dict[str, Any] | None = field(default=None, repr=False)
    """Tokens and calls."""
    result: dict[str, Any] | None = field(default=None, repr=False)
    """The result of the run."""
    error: dict[str, Any] | None = None
    """Why it failed or was cancelled."""
    waiting: Waiting | None = field(default=None, metadata=part(Waiting.of))
    """Why it waits; `None` when it does not."""


@dataclass(frozen=True, slots=True)
class SubmitResult(Record):
    """The answer to a submission; the run request is stored durably."""

    run_id: str
    """The id of the run."""
    request: RequestEntry = field(metadata=part(RequestEntry.of))
    """The run request in the queue."""
    auto_started: bool
    """Whether a worker of the service will claim it."""
    replayed: bool
    """Whether the same idempotency key was submitted before."""
    warnings: tuple[PreflightFinding, ...] = field(default=(), metadata=parts(parse_preflight_finding))
    """Preflight findings that do not prevent the run."""


@dataclass(frozen=True, slots=True)
class Origin(Record):
    """One effective value of the configuration and its origin."""

    field: str
    """The dotted path, such as `gepa.minibatch_size`."""
    value: Any
    """The effective value; secrets are hidden."""
    origin: str
    """The source of the value."""


@dataclass(frozen=True, slots=True)
class Transition(Record):
    """One status change of a run request."""

    sequence: int
    """The sequence number of the change."""
    request_id: str
    """The run request; a run that is submitted again has several."""
    at: str
    """When."""
    trigger: str
    """The action that caused the change."""
    to_status: str
    """The status after the change; `to` in JSON."""
    from_status: str | None = None
    """The status before the change; `from` in JSON."""
    worker_id: str | None = None
    """The worker that made the change."""
    fencing_token: int | None = None
    """The fencing token of that worker."""
    detail: Any = None
    """Additional data about the change."""

    @classmethod
    def of(cls, known: Mapping[str, Any]) -> Self:
        """Parse a transition; its JSON keys `from` and `to` are renamed."""
        return super(Transition, cls).of({**known, "to_status": known["to"], "from_status": known.get("from")})

    def to_dict(self) -> dict[str, Any]:
        """Return the transition with the JSON keys of the service."""
        names = {"from_status": "from", "to_status": "to"}
        return {names.get(name, name): value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class RunDetail(Record):
    """Everything about one run."""

    request: RequestEntry = field(metadata=part(RequestEntry.of))
    """Its run request."""
    run: RunStatus | None = field(metadata=part(RunStatus.from_native))
    """The status of the run; `None` before it starts."""
    models: dict[str, Any] = field(default_factory=dict, repr=False)
    """The `requested` and the effective model of `policy` and `proposer`."""
    config: dict[str, Any] = field(default_factory=dict, repr=False)
    """The effective configuration; secrets are hidden."""
    origins: tuple[Origin, ...] = field(default=(), repr=False, metadata=parts(Origin.of))
    """The origin of each value."""
    usage: dict[str, Any] | None = field(default=None, repr=False)
    """Tokens and calls."""
    history: tuple[Transition, ...] = field(default=(), repr=False, metadata=parts(Transition.of))
    """The status changes of its run request."""

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.request.run_id

    @property
    def status(self) -> str:
        """The status of its run request."""
        return self.request.status

    @property
    def is_terminal(self) -> bool:
        """Whether the status is final."""
        return self.request.is_terminal

    @property
    def error(self) -> dict[str, Any] | None:
        """Why the run failed or was cancelled."""
        return self.request.error

    def to_dict(self) -> dict[str, Any]:
        """Return the details as plain objects."""
        return {**asdict(self), "history": [each.to_dict() for each in self.history]}
