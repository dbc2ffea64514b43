"""The plan of a run and its preflight findings, computed before any cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any

from synth_optimizers._synth_optimizers import LoadedConfig, check_run, try_load_config
from synth_optimizers.config import Overrides, override_list
from synth_optimizers.extras import codex_runtime


@dataclass(frozen=True, slots=True)
class Bounds:
    """A lower and an upper bound."""

    at_least: int
    """If every proposal is promoted to a full evaluation."""
    at_most: int
    """If every proposal is rejected on its minibatch."""


@dataclass(frozen=True, slots=True)
class PlannedCost:
    """The cost of the worst case, or why it is unknown."""

    known: bool
    """Whether the cost is known."""
    worst_case_usd: float | None
    """The cost of the worst case; `None` is unknown."""
    unknown_reason: str | None
    """The information that is missing."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of a run: its rows, rollouts, proposals and cost."""

    train_rows: int | None
    """Train rows. `None` if only the container knows the rows; then all numbers but the limits are 0."""
    heldout_rows: int | None
    """Held-out rows."""
    pools: dict[str, int]
    """The number of rows in each pool: `pareto`, `minibatch`, `reflection` and `heldout`."""
    limits: dict[str, int | None]
    """The maximum number of rollouts: `train`, `heldout`, and `total` if both share one limit."""
    search: str
    """The search: `sprint` or `reference`."""
    search_reason: str
    """Why this search."""
    seed_evaluation: int
    """Rollouts that evaluate the initial candidate on the train rows, with those that a search in sprints repeats."""
    per_generation: dict[str, int]
    """Rollouts of one generation: `reference`, `minibatch`, `full_train` and `worst_case`."""
    at_once: dict[str, int]
    """Maximum numbers of what is in progress at once: `rollouts`, `generations` and `proposer_turns`. They follow from
    `gepa.pipeline.workers.rollout`, unless they are set."""
    heldout_evaluation: int
    """Rollouts of the held-out evaluation."""
    smallest_gain: float | None
    """The smallest gain that the held-out rows show in four of five runs, for scores from 0 to 1 that repeat exactly.
    `None` if they show none."""
    worst_case_rollouts: int
    """The maximum number of rollouts of the whole run."""
    proposals: Bounds
    """The number of proposals that the limits allow."""
    generations: Bounds
    """The number of generations that the limits allow."""
    cost: PlannedCost
    """The cost of the worst case."""
    notes: tuple[str, ...]
    """Remarks on the numbers."""

    @classmethod
    def from_native(cls, known: Mapping[str, Any]) -> RunPlan:
        """Parse a plan of the core."""
        parts = {
            "proposals": Bounds(**known["proposals"]),
            "generations": Bounds(**known["generations"]),
            "cost": PlannedCost(**known["cost"]),
            "notes": tuple(known["notes"]),
        }
        return cls(**{**known, **parts})

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain objects."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """A preflight finding: a problem that prevents the run, or a warning."""

    stage: str
    """The stage that found it: `config`, `output`, `cache`, `container`, `task`, `proposer` or `budget`."""
    code: str
    """A stable code: of the error table, or of a configuration finding."""
    field: str | None
    """The dotted path of the setting, if any."""
    location: str | None
    """The location in the configuration, such as `gepa.toml:17:18`, if any."""
    message: str
    """What is wrong, with the value."""
    hint: str
    """What to do."""
    retryable: bool
    """Whether the problem may go away by itself."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The preflight findings of a run, collected at no cost."""

    ok: bool
    """Whether the run can start."""
    blockers: tuple[PreflightFinding, ...]
    """Problems that prevent the run."""
    warnings: tuple[PreflightFinding, ...]
    """Problems that do not prevent the run."""
    facts: dict[str, Any] = field(repr=False)
    """What preflight learned about `container`, `proposer` and `rows`; `None` where it could not ask."""
    plan: RunPlan | None = field(repr=False)
    """The plan of the run."""

    @classmethod
    def from_native(cls, known: Mapping[str, Any]) -> CheckReport:
        """Parse a report of the core."""
        plan = known["plan"]
        return cls(
            ok=known["ok"],
            blockers=tuple(PreflightFinding(**found) for found in known["blockers"]),
            warnings=tuple(PreflightFinding(**found) for found in known["warnings"]),
            facts=known["facts"],
            plan=None if plan is None else RunPlan.from_native(plan),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain objects."""
        return asdict(self)


def check_toml(
    path: str | PathLike[str], overrides: Overrides = (), environ: Mapping[str, str] | None = None
) -> CheckReport:
    """Check the run of a TOML file and return every preflight finding, including problems of the file.

    Checks that depend on an invalid section are skipped. A file that is not TOML raises `OptimizerTomlDecodeError`.
    """
    return check_native(try_load_config(path, overrides=override_list(overrides), environ=environ))


def check_native(config: LoadedConfig) -> CheckReport:
    """Run the preflight checks of a loaded configuration."""
    return CheckReport.from_native(check_run(config, codex_runtime=codex_runtime()))
