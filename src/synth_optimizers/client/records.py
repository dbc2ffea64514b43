"""What a service says about itself, and what it did when it was asked to do something."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from synth_optimizers.client.entries import RequestEntry
from synth_optimizers.client.record import Record, part, parts
from synth_optimizers.events import RunEvent


@dataclass(frozen=True, slots=True)
class Health(Record):
    """The process behind the address."""

    status: str
    """`ok`."""
    phase: str
    """`starting`, `ready` or `draining`."""
    pid: int
    """Its process id."""
    version: str
    """The version of the package."""
    started_at: str
    """When it began."""
    instance_id: str
    """Another one after each start."""


@dataclass(frozen=True, slots=True)
class Readiness(Record):
    """Whether runs are taken and worked on."""

    status: str
    """`ready`."""
    database: str
    """`open`."""
    workers: int
    """How many requests are worked on side by side."""


@dataclass(frozen=True, slots=True)
class Acknowledgement(Record):
    """What became of a wish for a run."""

    run_id: str
    """The run."""
    action: str
    """`cancel`, `pause`, `resume` or `stop`."""
    acknowledgement: str
    """`accepted`, or `noop` when there was nothing to do."""
    status: str
    """The status of the request."""
    message: str = ""
    """The same in words."""


@dataclass(frozen=True, slots=True)
class Step(Record):
    """One unit of work of a run that goes on by steps."""

    run_id: str
    """The run."""
    terminal: bool
    """Whether it is over."""
    state: str
    """The state of the run after the step."""
    events: tuple[RunEvent, ...] = field(default=(), repr=False, metadata=parts(RunEvent.from_dict))
    """What happened."""


@dataclass(frozen=True, slots=True)
class WorkerRun(Record):
    """What `run_next` did."""

    request: RequestEntry | None = field(metadata=part(RequestEntry.of))
    """The request that was claimed and carried out, if there was one."""
    result: dict[str, Any] | None
    """Its result."""
    message: str = ""
    """The same in words."""


@dataclass(frozen=True, slots=True)
class WorkerTick(Record):
    """What `tick` did."""

    request: RequestEntry | None = field(metadata=part(RequestEntry.of))
    """The request that it was for, if there was one."""
    result: dict[str, Any] | None
    """The result of a run that is over."""
    action: dict[str, Any]
    """`action` is `noop`, `claim_run_request`, `step_run` or `terminalize_run`."""
    terminal: bool
    """Whether the run is over."""
    message: str = ""
    """The same in words."""


@dataclass(frozen=True, slots=True)
class Pruned(Record):
    """Runs that were removed, or would be."""

    run_ids: tuple[str, ...] = field(metadata=parts(str))
    """The runs."""
    dry_run: bool
    """Whether they are still there."""
    left: tuple[dict[str, str], ...] = field(default=(), metadata=parts(dict))
    """Runs that could not be removed: `run_id`, and the reason as `message`."""
