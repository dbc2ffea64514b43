"""Where a run is and what it has used, while it goes on and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from typing import Any

from synth_optimizers._synth_optimizers import run_status
from synth_optimizers.scores import Score, score_of


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Where a run is and what it has used, from a few rows."""

    run_id: str
    """The name of the run."""
    run_dir: str
    """Its directory."""
    state: str
    """Its state: `created`, `initializing`, `ready`, `proposing`, `rollout_queueing`, `rollout_running`, `evaluating`,
    `paused`, `completed`, `failed` or `cancelled`."""
    is_over: bool
    """Whether the state is final."""
    holder: str | None
    """The process that works on it."""
    best_candidate_id: str | None
    """The best candidate so far."""
    best_score: Score | None
    """Its score on train rows."""
    seed_score: Score | None
    """The seed's score on train rows."""
    best_heldout_score: Score | None
    """The best candidate's score on held-out rows, once it is measured."""
    frontier_size: int
    """Candidates that are best on some row."""
    candidates: int
    """Candidates that were registered, the seed included."""
    generations: int
    """Generations that were begun."""
    rollouts_requested: int
    """Rollouts that were asked for."""
    rollouts_finished: int
    """Those that gave a score."""
    rollouts_failed: int
    """Those that gave none, with those that were tried again."""
    rollouts_waiting: int
    """Answers that have come and wait for their turn to become events."""
    proposer_turns: int
    """Turns of the proposer."""
    paid_calls: int
    """Calls that may cost something."""
    cached_calls: int
    """Calls that the cache answered."""
    unknown_outcomes: int
    """Calls of which nobody knows whether they ran."""
    total_tokens: int
    """Tokens of paid calls, as far as known."""
    cost_usd: float | None
    """What was paid so far; `None` is unknown."""
    limits: dict[str, Any] = field(repr=False)
    """The limits of the configuration that are set."""
    started_at: str | None = field(repr=False)
    """When its first event was stored."""
    updated_at: str | None = field(repr=False)
    """When its last event was stored."""
    finished_at: str | None = field(repr=False)
    """When it ended."""
    stopped_by: dict[str, Any] | None = field(repr=False)
    """The rule that ended the search."""
    failure: dict[str, Any] | None = field(repr=False)
    """Why it failed or was let go: `error_code`, `message`, `hint` and `detail`."""

    @classmethod
    def read(cls, run_dir: str | PathLike[str]) -> RunStatus:
        """Read the status of the run in a directory, whoever carries it out."""
        return cls.from_native(run_status(run_dir))

    @classmethod
    def from_native(cls, known: Mapping[str, Any]) -> RunStatus:
        """Read a status as the core writes it."""
        scores = {name: score_of(known[name]) for name in ("best_score", "seed_score", "best_heldout_score")}
        return cls(**{name.name: known[name.name] for name in fields(cls)} | scores)

    @property
    def is_held(self) -> bool:
        """Whether a process works on the run."""
        return self.holder is not None

    def to_dict(self) -> dict[str, Any]:
        """Return the status as plain objects."""
        return asdict(self)
