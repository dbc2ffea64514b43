"""The service's own state and its answers to control requests, as records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from synth_optimizers.client.record import Record, part, parts
from synth_optimizers.client.run_records import RequestEntry
from synth_optimizers.events import RunEvent


@dataclass(frozen=True, slots=True)
class Health(Record):
    """The process that serves the address."""

    status: str
    """`ok`."""
    phase: str
    """`starting`, `ready` or `draining`."""
    pid: int
    """The process id."""
    version: str
    """The version of the package."""
    started_at: str
    """When the process started."""
    instance_id: str
    """An id that changes with each start."""


@dataclass(frozen=True, slots=True)
class Readiness(Record):
    """Whether the service accepts and executes runs."""

    status: str
    """`ready`."""
    database: str
    """`open`."""
    workers: int
    """How many runs are executed concurrently."""


@dataclass(frozen=True, slots=True)
class ControlResult(Record):
    """The answer to a control request."""

    run_id: str
    """The run."""
    action: str
    """`cancel`, `pause`, `resume` or `stop`."""
    acknowledgement: str
    """`accepted`, or `noop` when there was nothing to do."""
    status: str
    """The status of the run request."""
    message: str = ""
    """The acknowledgement as text."""


@dataclass(frozen=True, slots=True)
class StepResult(Record):
    """One unit of work of a run in manual-step mode."""

    run_id: str
    """The run."""
    terminal: bool
    """Whether the run has ended."""
    state: str
    """The state of the run after the step."""
    events: tuple[RunEvent, ...] = field(default=(), repr=False, metadata=parts(RunEvent.from_dict))
    """The events of the step."""


@dataclass(frozen=True, slots=True)
class RunNextResult(Record):
    """The result of `run_next`."""

    request: RequestEntry | None = field(metadata=part(RequestEntry.of))
    """The run request that was claimed and executed; `None` if the queue was empty."""
    result: dict[str, Any] | None
    """The result of its run."""
    message: str = ""
    """The result as text."""


@dataclass(frozen=True, slots=True)
class TickResult(Record):
    """The result of `tick`."""

    request: RequestEntry | None = field(metadata=part(RequestEntry.of))
    """The run request that was advanced; `None` if there was none."""
    result: dict[str, Any] | None
    """The result of the run, if it has ended."""
    action: dict[str, Any]
    """`action` is `noop`, `claim_run_request`, `step_run` or `terminalize_run`."""
    terminal: bool
    """Whether the run has ended."""
    message: str = ""
    """The result as text."""


@dataclass(frozen=True, slots=True)
class PruneResult(Record):
    """The runs that were deleted, or would be."""

    run_ids: tuple[str, ...] = field(metadata=parts(str))
    """The ids of the runs."""
    dry_run: bool
    """Whether the runs were only listed, not deleted."""
    not_pruned: tuple[dict[str, str], ...] = field(default=(), metadata=parts(dict))
    """Runs that could not be deleted: `run_id`, and the reason as `message`."""
