"""The status of a run: its state, progress and usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from typing import Any

from synth_optimizers._synth_optimizers import run_status
from synth_optimizers.scores import Score, score_of


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run: its state, progress and usage."""

    run_id: str
    """The id of the run."""
    run_dir: str
    """The directory of the run."""
    state: str
    """Its state: `created`, `initializing`, `ready`, `proposing`, `rollout_queueing`, `rollout_running`, `evaluating`,
    `paused`, `completed`, `failed` or `cancelled`."""
    is_terminal: bool
    """Whether the state is final."""
    holder: str | None
    """The process that executes the run; `None` if there is none."""
    best_candidate_id: str | None
    """The best candidate so far."""
    best_train_score: Score | None
    """Its score on train rows."""
    seed_train_score: Score | None
    """The score of the initial candidate on train rows."""
    best_heldout_score: Score | None
    """The best candidate's score on held-out rows, once it is evaluated on them."""
    frontier_size: int
    """Candidates that are best on at least one row."""
    candidates: int
    """Candidates that were registered, including the initial one."""
    generations: int
    """Generations that were started."""
    rollouts_requested: int
    """Rollouts that were requested."""
    rollouts_finished: int
    """Rollouts that returned a score."""
    rollouts_failed: int
    """Rollouts that returned no score, including those that were retried."""
    rollouts_waiting: int
    """Answers that have arrived and wait to become events."""
    proposer_turns: int
    """Completed exchanges with the proposer."""
    sent_calls: int
    """Sent calls: calls that left the process and may have a cost."""
    cached_calls: int
    """Cached calls: calls that the cache answered."""
    unknown_outcomes: int
    """Calls whose outcome is unknown."""
    total_tokens: int
    """Tokens of sent calls, as far as known."""
    cost_usd: float | None
    """The cost so far; `None` is unknown."""
    limits: dict[str, Any] = field(repr=False)
    """The limits of the configuration that are set."""
    search: str | None = field(repr=False)
    """How the search decides on candidates: `sprint` or `reference`; `None` before it is chosen."""
    search_reason: str | None = field(repr=False)
    """Why this search was chosen."""
    started_at: str | None = field(repr=False)
    """When its first event was stored."""
    updated_at: str | None = field(repr=False)
    """When its last event was stored."""
    finished_at: str | None = field(repr=False)
    """When it ended."""
    stopped_by: dict[str, Any] | None = field(repr=False)
    """The rule that ended the search."""
    waiting: list[dict[str, Any]] = field(repr=False)
    """What the run waits for, because it is unavailable: `waiting_for`, `cause`, `since`, `tries`, `next_try_at` and
    `deadline_at`, with times in milliseconds since 1970."""
    concurrency: dict[str, Any] | None = field(repr=False)
    """`new_limit` of `workers` rollouts run at once, because the container answered `status`. `None` if all workers are
    used."""
    shortfalls: list[dict[str, Any]] = field(repr=False)
    """Limits that were exceeded, because calls used more than their estimates: `kind`, `limit` and `spent`."""
    failure: dict[str, Any] | None = field(repr=False)
    """Why the run failed, or was cancelled or interrupted: `error_code`, `message`, `hint` and `detail`."""

    @classmethod
    def read(cls, run_dir: str | PathLike[str]) -> RunStatus:
        """Read the status of the run in a directory, whichever process executes it."""
        return cls.from_native(run_status(run_dir))

    @classmethod
    def from_native(cls, known: Mapping[str, Any]) -> RunStatus:
        """Parse a status of the core."""
        names = ("best_train_score", "seed_train_score", "best_heldout_score")
        scores = {name: score_of(known[name]) for name in names}
        return cls(**{name.name: known[name.name] for name in fields(cls)} | scores)

    @property
    def is_held(self) -> bool:
        """Whether a process executes the run."""
        return self.holder is not None

    def to_dict(self) -> dict[str, Any]:
        """Return the status as plain objects."""
        return asdict(self)
