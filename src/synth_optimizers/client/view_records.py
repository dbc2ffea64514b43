"""Views of a run as a whole: the tree of candidates, the table of rows, proposer turns and comparisons."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from synth_optimizers.client.record import Record, part, parts
from synth_optimizers.client.result_records import Candidate, OpenRecord
from synth_optimizers.errors import ConfigError, error_of
from synth_optimizers.scores import Gain, Score, gain_of, score_of

Cell = float | Literal["failed"] | None
"""A candidate on a row: its latest score, `failed` if every rollout failed, `None` if it was not measured."""


@dataclass(frozen=True, slots=True)
class LineageCandidate(OpenRecord):
    """A candidate in the tree of a run."""

    candidate_id: str
    """The id of the candidate."""
    parent_ids: list[str]
    """All of its parents, the first one first."""
    operation: str
    """`seed`, `mutate`, `merge` or `rebase`."""
    status: str
    """The status, such as `accepted` or `rejected_minibatch`."""
    generation: int | None = None
    """The generation that made it; `None` for the initial candidate."""
    sprint: int | None = None
    """The sprint that it belongs to; `None` in a reference search."""
    reason: str | None = None
    """The last decision about it, in words."""
    superseded_by: str | None = field(default=None, repr=False)
    """The candidate that was decided in its place."""
    minibatch_score: Score | None = field(default=None, repr=False, metadata=part(score_of))
    """Its score in the screening."""
    train_score: Score | None = field(default=None, metadata=part(score_of))
    """Its score on train rows."""
    heldout_score: Score | None = field(default=None, metadata=part(score_of))
    """Its score on held-out rows."""
    on_frontier: bool = False
    """Whether it is on the frontier and no other members dominate it."""
    is_best: bool = False
    """Whether it is the best candidate so far."""
    kept_share: float | None = field(default=None, repr=False)
    """The share of the parent's lines that its new texts keep."""
    changed_fields: list[str] = field(default_factory=list, repr=False)
    """Fields whose text differs from that of its first parent."""


@dataclass(frozen=True, slots=True)
class SprintCheck(OpenRecord):
    """A comparison of the head of a sprint with the best candidate."""

    check: int
    """Its number, from 0."""
    sprint: int
    """The sprint, from 0."""
    head_id: str
    """The head of the sprint."""
    anchor_id: str
    """The best candidate at that time."""
    verdict: str | None = None
    """`adopted`, `rolled_back` or `undecided`; `None` while the check runs."""
    reason: str | None = None
    """The reason in words."""
    n: int = 0
    """Rows on which both have scores."""
    mean: float | None = None
    """The mean difference, positive if the head is better."""
    probability: float | None = None
    """The probability that the head is better."""
    rollouts: int = 0
    """Rollouts that the check requested."""
    sequence: int | None = field(default=None, repr=False)
    """The sequence number of the event that decided it."""


@dataclass(frozen=True, slots=True)
class Lineage(OpenRecord):
    """All candidates of a run as a tree, with the checks of a search in sprints."""

    candidates: tuple[LineageCandidate, ...] = field(repr=False, metadata=parts(LineageCandidate.of))
    """Every candidate, in the order of registration; a parent comes before its children."""
    checks: tuple[SprintCheck, ...] = field(default=(), repr=False, metadata=parts(SprintCheck.of))
    """The checks, in order; empty in a reference search."""
    metric: str | None = None
    """The deciding objective."""
    direction: str | None = None
    """`maximize` or `minimize`."""
    search: str | None = None
    """`sprint` or `reference`; `None` before it is chosen."""
    initial_candidate_id: str | None = None
    """The initial candidate."""
    best_candidate_id: str | None = None
    """The best candidate so far."""
    is_live: bool = False
    """Whether the run is active, so the tree can still grow."""

    def to_dict(self) -> dict[str, Any]:
        """Return the tree in the JSON shape of the service."""
        known = super(Lineage, self).to_dict()
        nested = {"candidates": [each.to_dict() for each in self.candidates]}
        return {**known, **nested, "checks": [each.to_dict() for each in self.checks]}

    def to_records(self) -> list[dict[str, Any]]:
        """Return one dictionary per candidate: its parents, its scores, and what was decided about it."""
        names = ("candidate_id", "parent_ids", "operation", "generation", "sprint", "status", "reason", "superseded_by")
        more = ("is_best", "on_frontier", "kept_share", "changed_fields")
        return [
            {name: getattr(known, name) for name in names}
            | _score_columns(known, "minibatch", "train", "heldout")
            | {name: getattr(known, name) for name in more}
            for known in self.candidates
        ]

    def to_dataframe(self) -> Any:  # noqa: ANN401 (pandas is optional)
        """Return the records as a pandas DataFrame with one row per candidate."""
        return data_frame(self.to_records())


@dataclass(frozen=True, slots=True)
class TableRow(OpenRecord):
    """A row of the table. Its numbers count all candidates, not only the columns."""

    example_id: str
    """The id of the row."""
    cells: list[Cell]
    """One cell per column."""
    best_value: float | None = None
    """The best value of any candidate."""
    winners: list[str] = field(default_factory=list, repr=False)
    """The candidates with the best value, at most 20."""
    winner_count: int = 0
    """The number of candidates with the best value."""
    measured: int = 0
    """The number of candidates that have a score on this row."""
    failed: int = 0
    """The number of candidates whose rollouts on this row failed."""
    gain: float | None = None
    """How much better the best candidate is than the initial one; `None` if one of them has no score."""


@dataclass(frozen=True, slots=True)
class RowTable(OpenRecord):
    """The table of rows and candidates, or a window of it."""

    rows: tuple[TableRow, ...] = field(repr=False, metadata=parts(TableRow.of))
    """The rows."""
    candidate_ids: tuple[str, ...] = field(repr=False)
    """The candidates of the columns, in the order of the cells."""
    row_count: int
    """The number of rows of the whole table."""
    candidate_count: int
    """The number of candidates that match the filter."""
    split: str | None = None
    """`train` or `heldout`; `None` before the task is loaded."""
    metric: str | None = None
    """The objective of the values."""
    direction: str | None = None
    """`maximize` or `minimize`."""
    next_offset: int | None = field(default=None, repr=False)
    """The `offset` of the next rows; `None` for the last ones."""
    next_candidate_offset: int | None = field(default=None, repr=False)
    """The `candidate_offset` of the next columns; `None` for the last ones."""
    initial_candidate_id: str | None = None
    """The initial candidate."""
    best_candidate_id: str | None = None
    """The best candidate so far."""

    def to_dict(self) -> dict[str, Any]:
        """Return the table in the JSON shape of the service."""
        known = super(RowTable, self).to_dict()
        del known["candidate_ids"]
        return {**known, "rows": [row.to_dict() for row in self.rows]}

    def to_records(self) -> list[dict[str, Any]]:
        """Return one dictionary per row: `example_id`, its numbers, and the cell of each candidate under its id."""
        names = ("example_id", "best_value", "winner_count", "measured", "failed", "gain")
        return [
            {
                **{name: getattr(row, name) for name in names},
                **dict(zip(self.candidate_ids, row.cells, strict=True)),
            }
            for row in self.rows
        ]

    def to_dataframe(self) -> Any:  # noqa: ANN401 (pandas is optional)
        """Return the records as a pandas DataFrame with one row per row of the dataset."""
        return data_frame(self.to_records())


def row_table(known: dict[str, Any]) -> RowTable:
    """Parse a table of the core."""
    return RowTable.of({**known, "candidate_ids": tuple(each["candidate_id"] for each in known["candidates"])})


def whole_table(read: Callable[[dict[str, int]], dict[str, Any]]) -> RowTable:
    """Read all windows of a table and return them as one. `read` returns the window of these parameters."""
    rows: list[TableRow] = []
    offset: int | None = 0
    while offset is not None:
        windows = [row_table(read({"limit": 1000, "offset": offset, "candidate_limit": 200}))]
        while windows[-1].next_candidate_offset is not None:
            window = {"limit": 1000, "offset": offset, "candidate_limit": 200}
            windows.append(row_table(read({**window, "candidate_offset": windows[-1].next_candidate_offset})))
        rows += _joined(windows)
        offset = windows[0].next_offset
    return replace(
        windows[0],
        rows=tuple(rows),
        candidate_ids=tuple(name for window in windows for name in window.candidate_ids),
        next_candidate_offset=None,
        next_offset=None,
        more={"candidates": [known for window in windows for known in window.more["candidates"]]},
    )


def _joined(windows: list[RowTable]) -> list[TableRow]:
    """Return the rows of the first window with the cells of all windows.

    An active run may move a row to another window between two reads; its cells are then `None`.
    """
    known = [({row.example_id: row.cells for row in each.rows}, [None] * len(each.candidate_ids)) for each in windows]
    return [
        replace(row, cells=[cell for cells, missing in known for cell in cells.get(row.example_id, missing)])
        for row in windows[0].rows
    ]


@dataclass(frozen=True, slots=True)
class CandidateTable:
    """The candidates of a run, in the order of registration."""

    items: tuple[Candidate, ...] = field(repr=False)
    """The candidates."""

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self.items)

    def __getitem__(self, place: int | str) -> Candidate:
        """Return a candidate by its place or its id."""
        if isinstance(place, int):
            return self.items[place]
        found = next((known for known in self.items if known.candidate_id == place), None)
        if found is None:
            raise KeyError(place)
        return found

    def to_records(self) -> list[dict[str, Any]]:
        """Return one dictionary per candidate: lineage, status, scores, and its texts as `text.FIELD`."""
        return [_candidate_record(known) for known in self.items]

    def to_dataframe(self) -> Any:  # noqa: ANN401 (pandas is optional)
        """Return the records as a pandas DataFrame with one row per candidate."""
        return data_frame(self.to_records())


def candidate_table(records: list[dict[str, Any]], best_id: str | None) -> CandidateTable:
    """Parse the records of all candidates."""
    known = ({**record, "is_best": record["candidate_id"] == best_id} for record in records)
    return CandidateTable(tuple(Candidate.of(record) for record in known))


def _candidate_record(known: Candidate) -> dict[str, Any]:
    names = ("candidate_id", "generation", "source", "parent_ids", "status", "is_best", "on_frontier")
    record: dict[str, Any] = {name: getattr(known, name) for name in names} | _score_columns(known, "train", "heldout")
    record |= {"changed_fields": known.changed_fields, "rationale": known.rationale}
    return record | {f"text.{name}": text for name, text in known.payload.items()}


def _score_columns(known: Candidate | LineageCandidate, *kinds: str) -> dict[str, Any]:
    """Return the parts of these scores as columns such as `train_mean`."""
    columns = {}
    for kind in kinds:
        score: Score | None = getattr(known, f"{kind}_score")
        for name in ("mean", "n", "low", "high"):
            columns[f"{kind}_{name}"] = None if score is None else getattr(score, name)
    return columns


def data_frame(records: list[dict[str, Any]]) -> Any:  # noqa: ANN401 (pandas is optional)
    """Return records as a pandas DataFrame."""
    try:
        frame = importlib.import_module("pandas").DataFrame
    except (ImportError, AttributeError) as problem:
        hint = "pip install pandas; to_records() returns the same rows without it."
        raise error_of(ConfigError, "to_dataframe() requires the package pandas", hint, str(problem)) from problem
    return frame.from_records(records)


@dataclass(frozen=True, slots=True)
class Turn(OpenRecord):
    """A proposer turn: what it asked for, what it cost, and what became of each proposal."""

    turn: int
    """Its number, from 1."""
    generation: int
    """The generation that requested proposals."""
    attempt: int
    """The attempt, from 1."""
    status: str
    """`started`, `completed`, `failed` or `retried`."""
    is_repair: bool = False
    """Whether it asked the proposer to repair the previous answer."""
    parent_ids: list[str] = field(default_factory=list)
    """The candidates that the proposals start from."""
    evidence: list[str] = field(default_factory=list, repr=False)
    """Rows whose traces the proposer saw."""
    requested_model: str | None = None
    """The requested model."""
    effective_model: str | None = None
    """The model that answered."""
    usage: dict[str, Any] | None = field(default=None, repr=False)
    """Tokens and cost of the turn."""
    cost_usd: float | None = None
    """The cost; `None` is unknown."""
    cached: bool | None = None
    """Whether the cache answered the turn."""
    duration_ms: int | None = None
    """Milliseconds between sending and the answer."""
    failure: dict[str, Any] | None = None
    """Why it has no answer."""
    proposals: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """For each proposal its `index`, the `outcome` (`registered`, `refused` or `duplicate`), the `candidate_id`, the
    `candidate_status` and the `problems`."""


@dataclass(frozen=True, slots=True)
class TurnDetail(Turn):
    """A proposer turn with its answer and its transcript."""

    answer: Any = field(default=None, repr=False)
    """The stored answer; `None` if there is none."""
    answer_problem: str | None = None
    """Why the answer is missing."""
    transcript: dict[str, Any] = field(default_factory=dict, repr=False)
    """What the proposer was `shown` and `answered` as texts, all `messages`, and the `problem` if a part is missing."""


@dataclass(frozen=True, slots=True)
class ComparedText(Record):
    """A field with the texts of both candidates."""

    field: str
    """The field."""
    is_equal: bool
    """Whether both texts are equal."""
    left: str | None = None
    """The text of the first candidate."""
    right: str | None = None
    """The text of the second candidate."""


@dataclass(frozen=True, slots=True)
class Comparison(OpenRecord):
    """A comparison of two runs, or of two candidates of one run."""

    left: dict[str, Any] = field(repr=False)
    """The first run: `run_id`, `state`, `candidate_id`, scores, `usage` and `stopped_by`."""
    right: dict[str, Any] = field(repr=False)
    """The second run."""
    metric: str | None = None
    """The objective of the scores; `None` if the runs have no common one."""
    settings: list[dict[str, Any]] = field(default_factory=list, repr=False)
    """The settings that differ: `field`, `left` and `right`."""
    train_gain: Gain | None = field(default=None, metadata=part(gain_of))
    """The gain of the second candidate over the first one on shared train rows."""
    heldout_gain: Gain | None = field(default=None, metadata=part(gain_of))
    """The same gain on held-out rows."""
    texts: tuple[ComparedText, ...] = field(default=(), repr=False, metadata=parts(ComparedText.of))
    """The texts of both candidates, by field."""
    notes: list[str] = field(default_factory=list)
    """Why a part of the comparison is missing or has to be read with care."""

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison in the JSON shape of the service."""
        return {**super(Comparison, self).to_dict(), "texts": [text.to_dict() for text in self.texts]}
