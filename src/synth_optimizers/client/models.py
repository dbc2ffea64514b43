"""What a service says about the candidates, rollouts, scores and artifacts of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from synth_optimizers.client.record import Record, part, parts
from synth_optimizers.scores import Gain, Score, gain_of, score_of


@dataclass(frozen=True, slots=True)
class OpenRecord(Record):
    """A record that keeps what the service says beyond its fields, in `more`."""

    @classmethod
    def of(cls, known: Mapping[str, Any]) -> Self:
        """Read an object."""
        names = {each.name for each in fields(cls)}
        more = {name: value for name, value in known.items() if name not in names}
        return super(OpenRecord, cls).of({**known, "more": more})

    def to_dict(self) -> dict[str, Any]:
        """Return the record in the shape of the service."""
        known = super(OpenRecord, self).to_dict()
        more: dict[str, Any] = known.pop("more")
        return {**known, **more}


@dataclass(frozen=True, slots=True)
class Candidate(OpenRecord):
    """A candidate with its texts, lineage and scores."""

    candidate_id: str
    """The name of the candidate."""
    status: str
    """Such as `accepted` or `rejected_minibatch`."""
    payload: dict[str, str] = field(default_factory=dict, repr=False)
    """Its texts by field."""
    parent_ids: list[str] = field(default_factory=list)
    """What it was made from."""
    source: str | None = None
    """How it was made: `seed`, a proposal or a merge."""
    generation: int | None = None
    """The generation that brought it."""
    train_score: Score | None = field(default=None, metadata=part(score_of))
    """Its score on train rows."""
    heldout_score: Score | None = field(default=None, metadata=part(score_of))
    """Its score on held-out rows."""
    is_best: bool | None = None
    """Whether it is the best candidate so far."""
    on_frontier: bool | None = None
    """Whether it is best on some row."""
    changed_fields: list[str] = field(default_factory=list, repr=False)
    """Fields whose text differs from that of its first parent."""
    rationale: str | None = field(default=None, repr=False)
    """Why it was proposed."""
    more: dict[str, Any] = field(default_factory=dict, repr=False)
    """Whatever else the service says."""


@dataclass(frozen=True, slots=True)
class Rollout(OpenRecord):
    """One rollout: a candidate on one row."""

    candidate_id: str
    """The candidate."""
    request: int | None = None
    """Its number in the run."""
    rollout_id: str | None = None
    """The name under which the container knows it; `None` before it is sent."""
    example_id: str | None = None
    """The row."""
    evaluation_stage: str | None = None
    """What it was for, such as `candidate_minibatch` or `heldout`."""
    split: str | None = None
    """`train` or `heldout`."""
    status: str | None = None
    """How it went."""
    reward: float | None = None
    """Its score; a rollout that failed has none."""
    cost_usd: float | None = None
    """What was paid; `None` is unknown."""
    cached: bool | None = None
    """Whether the cache answered."""
    usage: dict[str, Any] | None = field(default=None, repr=False)
    """Tokens and cost, as the container told them."""
    failure: dict[str, Any] | None = None
    """Why it has no score."""
    trace: dict[str, Any] | None = field(default=None, repr=False)
    """The reply of the container and what the proposer sees of it; with `trace=True` only."""
    more: dict[str, Any] = field(default_factory=dict, repr=False)
    """Whatever else the service says."""


@dataclass(frozen=True, slots=True)
class Frontier(OpenRecord):
    """The candidates that are best on some row."""

    items: list[dict[str, Any]] = field(repr=False)
    """They, with their scores and the cells that they hold."""
    size: int
    """How many they are."""
    frontier_type: str | None = None
    """What one cell is."""
    sequence: int | None = None
    """The event that changed it last."""
    more: dict[str, Any] = field(default_factory=dict, repr=False)
    """Whatever else the service says."""


@dataclass(frozen=True, slots=True)
class ScoreRecord(OpenRecord):
    """One measurement of a candidate."""

    candidate_id: str
    """The candidate."""
    metric: str | None = None
    """What was measured."""
    split: str | None = None
    """`train` or `heldout`."""
    direction: str | None = None
    """`maximize` or `minimize`."""
    value: float | None = None
    """The mean over the rows."""
    n: int | None = None
    """How many rows it rests on."""
    standard_error: float | None = None
    """Unknown for fewer than two rows."""
    stage: str | None = field(default=None, repr=False)
    """The evaluation that it comes from."""
    score_id: str | None = field(default=None, repr=False)
    """Its name."""
    harness_id: str | None = field(default=None, repr=False)
    """The task, as the container names it."""
    harness_digest: str | None = field(default=None, repr=False)
    """What it was measured with; scores of different harnesses are not compared."""
    artifact_ref: dict[str, Any] | None = field(default=None, repr=False)
    """The file that has the scores by row, once it is written."""
    sequence: int | None = None
    """The event that brought it."""
    at: str | None = None
    """When."""
    more: dict[str, Any] = field(default_factory=dict, repr=False)
    """Whatever else the service says."""


@dataclass(frozen=True, slots=True)
class ScorePoint(Record):
    """A point of a series."""

    sequence: int
    """The event that brought it."""
    at: str | None
    """When it was measured."""
    candidate_id: str
    """The candidate."""
    value: float
    """The mean over the rows."""
    n: int
    """How many rows it rests on."""
    standard_error: float | None = None
    """Unknown for fewer than two rows."""
    best_so_far: float | None = None
    """The best value up to here."""


@dataclass(frozen=True, slots=True)
class ScoreSeries(Record):
    """The scores of one metric on one split, in order."""

    metric: str
    """What was measured."""
    split: str
    """`train` or `heldout`."""
    direction: str
    """`maximize` or `minimize`."""
    points: tuple[ScorePoint, ...] = field(default=(), repr=False, metadata=parts(ScorePoint.of))
    """One for each candidate that was measured."""


@dataclass(frozen=True, slots=True)
class Best(OpenRecord):
    """The best candidate so far."""

    candidate_id: str
    """The name of the candidate."""
    payload: dict[str, str]
    """Its texts by field."""
    sequence: int
    """The event that made it the best; `wait_newer_than` takes it."""
    train_score: Score | None = field(default=None, metadata=part(score_of))
    """Its score on train rows."""
    seed_score: Score | None = field(default=None, metadata=part(score_of))
    """The seed's score on the same rows."""
    gain: Gain | None = field(default=None, metadata=part(gain_of))
    """How much better it is than the seed; the search has chosen by these rows, so it flatters."""
    heldout_score: Score | None = field(default=None, metadata=part(score_of))
    """Its score on held-out rows, once it is measured."""
    heldout_gain: Gain | None = field(default=None, metadata=part(gain_of))
    """How much better it is than the seed on rows that chose nothing."""
    at: str | None = None
    """When it became the best."""
    more: dict[str, Any] = field(default_factory=dict, repr=False)
    """Whatever else the service says."""


@dataclass(frozen=True, slots=True)
class Artifact(Record):
    """A file that a run leaves behind."""

    name: str
    """Its name in the run directory."""
    kind: str
    """What it is."""
    bytes: int
    """Its size."""
    media_type: str | None = None
    """The type of its content."""
    sha256: str | None = None
    """The digest of its content, in hex; `None` while it still grows."""
