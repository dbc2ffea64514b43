"""The result of a run: complete for a completed run, and what there is for any other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from synth_optimizers._synth_optimizers import run_candidates, run_lineage, run_notebook_view, run_result, run_rows
from synth_optimizers.errors import (
    OptimizerIoError,
    OptimizerJsonError,
    SynthOptimizerError,
    error_of,
)
from synth_optimizers.scores import Claim, Scores, claim_of
from synth_optimizers.visible_text import visible_text

if TYPE_CHECKING:
    from synth_optimizers.client.view_records import CandidateTable, Lineage, RowTable


@dataclass(frozen=True, slots=True)
class GepaRunResult:
    """The result of a run: scores, best candidate, cost and artifacts.

    A run that is not completed has what was measured before it ended: the best candidate so far, its usage and its
    failure.
    """

    run_id: str
    """The id of the run."""
    status: str
    """`completed`, `failed`, `cancelled` or `interrupted`; the state of the run while a process executes it."""
    run_dir: str
    """The directory of the run."""
    best_candidate: dict[str, Any] = field(repr=False)
    """The best candidate: `candidate_id`, `payload` with its texts, lineage and scores. Empty if no candidate was
    evaluated."""
    scores: Scores
    """The scores of the initial and the best candidate on train and held-out rows, with intervals."""
    claim: Claim | None
    """What the held-out rows show about the result; `None` if the run is not completed."""
    stopped_by: dict[str, Any] | None
    """The rule that ended the search."""
    failure: dict[str, Any] | None
    """Why the run failed, or was cancelled or interrupted: `error_code`, `message`, `hint` and `detail`."""
    generations: int
    """Generations that were started."""
    candidate_count: int
    """Candidates that were registered, including the initial one."""
    rollouts: dict[str, int]
    """Rollouts by split, and those that failed or have an unknown outcome."""
    rollouts_by_purpose: dict[str, int]
    """Rollouts by what they were for: `initial`, `repeat`, `reference`, `screening`, `glance`, `check`,
    `full_evaluation` and `heldout`. Empty in a manifest of an earlier version."""
    cost_usd: float | None
    """The cost; `None` is unknown."""
    usage: dict[str, Any]
    """Tokens and calls."""
    state_history: list[dict[str, Any]] = field(repr=False)
    """Every state change of the run."""
    artifact_refs: list[dict[str, Any]] = field(repr=False)
    """The artifacts with their digests."""
    manifest_path: str = field(repr=False)
    """The path of `result_manifest.json`, from which this object is read."""
    event_feed_path: str = field(repr=False)
    """`events.jsonl`."""
    normalized_event_feed_path: str = field(repr=False)
    """`events.normalized.jsonl`, equal for fresh, cached and readonly runs of one config."""
    cache_profile_path: str = field(repr=False)
    """`cache_profile.json`."""
    best_candidate_path: str = field(repr=False)
    """`best_candidate.json`."""
    candidate_registry_path: str = field(repr=False)
    """`candidate_registry.json`."""
    frontier_path: str = field(repr=False)
    """`frontier.json`."""
    score_chart_path: str = field(repr=False)
    """`score_chart.svg`: scores against rollouts."""
    lineage_path: str = field(repr=False)
    """`lineage.svg`: the tree of candidates. A run of an earlier version has no such file."""
    run_registry_path: str = field(repr=False)
    """`run_registry.jsonl`, which lists all runs of the output directory."""
    workspace_db_path: str = field(repr=False)
    """`workspace.sqlite`."""

    @classmethod
    def from_run_dir(cls, run_dir: str | PathLike[str]) -> GepaRunResult:
        """Read the result of a run, or what there is of it if the run is not completed."""
        place = Path(run_dir).resolve()
        path = place / "result_manifest.json"
        if path.exists() or not (place / "workspace.sqlite").exists():
            manifest = read_json(path, "Name the directory of a run.")
            if manifest.get("status") == "completed":
                return cls.from_manifest(_relocate(manifest, place))
        return cls.from_manifest(run_result(place))

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> GepaRunResult:
        """Parse a result manifest."""
        parsed = {"scores": Scores.from_manifest(manifest), "claim": claim_of(manifest.get("claim"))}
        lineage = str(Path(str(manifest.get("run_dir", ""))) / "lineage.svg")
        count = {"candidate_count": manifest["candidates"]} if "candidates" in manifest else {}
        absent: dict[str, Any] = {"failure": None, "rollouts_by_purpose": {}, "lineage_path": lineage}
        known = {**absent, **manifest, **count, **parsed}
        try:
            return cls(**{each.name: known[each.name] for each in fields(cls)})
        except KeyError as missing:
            raise error_of(OptimizerJsonError, f"the result manifest has no {missing}") from missing

    @property
    def best_prompt(self) -> dict[str, str]:
        """The texts of the best candidate by field; empty if no candidate was evaluated."""
        return dict(self.best_candidate.get("payload", {}))

    @property
    def initial_prompt(self) -> dict[str, str]:
        """The texts of the initial candidate by field, read from the candidate registry; empty if it has none."""
        registry = read_json(Path(self.candidate_registry_path), "Wait until the run has ended.")
        return dict(registry[0]["payload"]) if registry else {}

    @property
    def candidates(self) -> CandidateTable:
        """All candidates with their texts, lineage and scores, read from the run directory at each access."""
        from synth_optimizers.client.view_records import candidate_table

        return candidate_table(run_candidates(self.run_dir), self.best_candidate.get("candidate_id"))

    @property
    def lineage(self) -> Lineage:
        """All candidates as a tree with the reason of each decision, read from the run directory at each access."""
        from synth_optimizers.client.view_records import Lineage

        return Lineage.of(run_lineage(self.run_dir))

    @property
    def rows(self) -> RowTable:
        """The scores of the initial, the best and the accepted candidates on all train rows, unsolved rows first."""
        return self.row_table()

    def row_table(
        self,
        split: Literal["train", "heldout"] = "train",
        *,
        metric: str | None = None,
        order: Literal["unsolved", "gain", "id"] = "unsolved",
        candidates: Literal["all"] | Sequence[str] | None = None,
    ) -> RowTable:
        """Return the scores by row: on train or held-out rows, for all or for named candidates."""
        from synth_optimizers.client.view_records import whole_table

        named = candidates if candidates is None or isinstance(candidates, str) else ",".join(candidates)
        query = {"split": split, "metric": metric, "order": order, "candidates": named}
        known = {name: value for name, value in query.items() if value is not None}
        return whole_table(lambda window: run_rows(self.run_dir, {**known, **window}))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain objects, with the names of the manifest."""
        known = asdict(self)
        known["candidates"] = known.pop("candidate_count")
        return known

    def _repr_html_(self) -> str:
        """Return the result for a notebook: verdict, scores, chart, best texts with changes, and lineage."""
        try:
            return run_notebook_view(self.run_dir)
        except SynthOptimizerError as problem:
            return f"<p>Run {escape(self.run_id)}, {escape(self.status)}: {escape(visible_text(str(problem)))}</p>"


def _relocate(manifest: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    """Return the manifest with paths in `run_dir`, which may have been moved or extracted from an archive."""
    relocated = dict(manifest)
    for name, place in manifest.items():
        if name.endswith("_path") and isinstance(place, str):
            root = run_dir.parent if name == "run_registry_path" else run_dir
            relocated[name] = str(root / Path(place).name)
    return {**relocated, "run_dir": str(run_dir)}


def read_json(path: Path, hint: str) -> Any:  # noqa: ANN401 (any JSON value)
    """Read a JSON artifact of a run."""
    try:
        return json.loads(path.read_bytes())
    except OSError as problem:
        raise error_of(OptimizerIoError, f"cannot read {path}: {problem.strerror}", hint) from problem
    except ValueError as problem:
        retry_hint = "Run the same command again; it writes the results of an ended run again."
        raise error_of(OptimizerJsonError, f"{path} is not JSON: {problem}", retry_hint) from problem
