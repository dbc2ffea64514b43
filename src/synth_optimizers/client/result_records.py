"""Candidates, rollouts, scores and artifacts of a run as the service returns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from synth_optimizers.client.record import Record, part, parts
from synth_optimizers.scores import Gain, Score, gain_of, score_of


@dataclass(frozen=True, slots=True)
class OpenRecord(Record):
    """A record that keeps unknown keys of the JSON object."""

    more: dict[str, Any] = field(default_factory=dict, repr=False, kw_only=True)
    """Additional keys of the JSON object."""

    @classmethod
    def of(cls, known: Mapping[str, Any]) -> Self:
        """Parse a JSON object."""
        names = {each.name for each in fields(cls)}
        more = {name: value for name, value in known.items() if name not in names}
        return super(OpenRecord, cls).of({**known, "more": more})

    def to_dict(self) -> dict[str, Any]:
        """Return the record in the JSON shape of the service."""
        known = super(OpenRecord, self).to_dict()
        more: dict[str, Any] = known.pop("more")
        return {**known, **more}


@dataclass(frozen=True, slots=True)
class Candidate(OpenRecord):
    """A candidate with its texts, lineage and scores."""

    candidate_id: str
    """The id of the candidate."""
    status: str
    """The status, such as `accepted` or `rejected_minibatch`."""
    payload: dict[str, str] = field(default_factory=dict, repr=False)
    """Its texts by field."""
    parent_ids: list[str] = field(default_factory=list)
    """The candidates it was derived from."""
    source: str | None = None
    """How it was made: `seed`, a proposal or a merge."""
    generation: int | None = None
    """The generation that proposed it."""
    train_score: Score | None = field(default=None, metadata=part(score_of))
    """Its score on train rows."""
    heldout_score: Score | None = field(default=None, metadata=part(score_of))
    """Its score on held-out rows."""
    is_best: bool | None = None
    """Whether it is the best candidate so far."""
    on_frontier: bool | None = None
    """Whether it is best on at least one row."""
    changed_fields: list[str] = field(default_factory=list, repr=False)
    """Fields whose text differs from that of its first parent."""
    rationale: str | None = field(default=None, repr=False)
    """Why it was proposed."""


@dataclass(frozen=True, slots=True)
class Rollout(OpenRecord):
    """One rollout: a candidate on one row."""

    candidate_id: str
    """The candidate."""
    call_id: int | None = None
    """The number of its call in the run."""
    rollout_id: str | None = None
    """The id that the container uses; `None` before the call is sent."""
    example_id: str | None = None
    """The id of the row."""
    evaluation_stage: str | None = None
    """The stage of its evaluation, such as `candidate_minibatch` or `heldout`."""
    split: str | None = None
    """`train` or `heldout`."""
    status: str | None = None
    """The outcome."""
    reward: float | None = None
    """The score; `None` if the rollout failed."""
    cost_usd: float | None = None
    """The cost; `None` is unknown."""
    cached: bool | None = None
    """Whether the cache answered the call."""
    usage: dict[str, Any] | None = field(default=None, repr=False)
    """Tokens and cost, as the container reported them."""
    failure: dict[str, Any] | None = None
    """Why it has no score."""
    trace: dict[str, Any] | None = field(default=None, repr=False)
    """The reply of the container and the part that the proposer sees; only with `trace=True`."""


@dataclass(frozen=True, slots=True)
class Frontier(OpenRecord):
    """The candidates that are best on at least one row."""

    items: list[dict[str, Any]] = field(repr=False)
    """The candidates, with their scores and the cells in which they are best."""
    size: int
    """The number of candidates."""
    frontier_type: str | None = None
    """What a cell of the frontier is."""
    sequence: int | None = None
    """The sequence number of the event that last changed it."""


@dataclass(frozen=True, slots=True)
class ScoreRecord(OpenRecord):
    """One score of a candidate."""

    candidate_id: str
    """The candidate."""
    metric: str | None = None
    """The name of the metric."""
    split: str | None = None
    """`train` or `heldout`."""
    direction: str | None = None
    """`maximize` or `minimize`."""
    value: float | None = None
    """The mean over the rows."""
    n: int | None = None
    """The number of rows."""
    standard_error: float | None = None
    """`None` for fewer than two rows."""
    stage: str | None = field(default=None, repr=False)
    """The stage of the evaluation that produced it."""
    score_id: str | None = field(default=None, repr=False)
    """The id of the score."""
    harness_id: str | None = field(default=None, repr=False)
    """The id of the task, as the container names it."""
    harness_digest: str | None = field(default=None, repr=False)
    """The digest of the task's evaluation; scores with different digests are not compared."""
    artifact_ref: dict[str, Any] | None = field(default=None, repr=False)
    """The artifact with the scores by row, once it is written."""
    sequence: int | None = None
    """The sequence number of the event that reported it."""
    at: str | None = None
    """When it was measured."""


@dataclass(frozen=True, slots=True)
class ScorePoint(Record):
    """One point of a score series."""

    sequence: int
    """The sequence number of the event that reported it."""
    at: str | None
    """When it was measured."""
    candidate_id: str
    """The candidate."""
    value: float
    """The mean over the rows."""
    n: int
    """The number of rows."""
    standard_error: float | None = None
    """`None` for fewer than two rows."""
    best_so_far: float | None = None
    """The best value up to this point."""


@dataclass(frozen=True, slots=True)
class ScoreSeries(Record):
    """The scores of one metric on one split, in order."""

    metric: str
    """The name of the metric."""
    split: str
    """`train` or `heldout`."""
    direction: str
    """`maximize` or `minimize`."""
    points: tuple[ScorePoint, ...] = field(default=(), repr=False, metadata=parts(ScorePoint.of))
    """One point for each evaluated candidate."""


@dataclass(frozen=True, slots=True)
class Best(OpenRecord):
    """The best candidate so far."""

    candidate_id: str
    """The id of the candidate."""
    payload: dict[str, str]
    """Its texts by field."""
    sequence: int
    """The sequence number of the event that made it the best; pass it as `wait_newer_than`."""
    train_score: Score | None = field(default=None, metadata=part(score_of))
    """Its score on train rows."""
    seed_train_score: Score | None = field(default=None, metadata=part(score_of))
    """The score of the initial candidate on the same rows."""
    train_gain: Gain | None = field(default=None, metadata=part(gain_of))
    """The gain over the initial candidate on train rows. The search selects on these rows, so the gain is biased
    upwards."""
    heldout_score: Score | None = field(default=None, metadata=part(score_of))
    """Its score on held-out rows, once it is evaluated on them."""
    heldout_gain: Gain | None = field(default=None, metadata=part(gain_of))
    """The gain over the initial candidate on held-out rows, on which nothing was selected."""
    at: str | None = None
    """When it became the best."""


@dataclass(frozen=True, slots=True)
class Artifact(Record):
    """An artifact: a file that a run writes."""

    name: str
    """Its name in the run directory."""
    kind: str
    """The kind of artifact."""
    bytes: int
    """The size in bytes."""
    media_type: str | None = None
    """The media type of the content."""
    sha256: str | None = None
    """The SHA-256 digest of the content, in hex; `None` while the file still grows."""
