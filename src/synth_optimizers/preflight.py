"""What a run would take and what stands in its way, told before anything is paid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any

from synth_optimizers._synth_optimizers import LoadedConfig, check_run, try_load_config
from synth_optimizers.extras import codex_runtime


@dataclass(frozen=True, slots=True)
class Bounds:
    """At least and at most."""

    at_least: int
    """Should every proposal be promoted to a full evaluation."""
    at_most: int
    """Should every proposal be rejected on its minibatch."""


@dataclass(frozen=True, slots=True)
class PlannedCost:
    """What the worst case costs, or why nobody knows."""

    known: bool
    """Whether it can be known."""
    worst_case_usd: float | None
    """The worst case; `None` is unknown."""
    why_unknown: str | None
    """What is missing to know it."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The arithmetic of a run."""

    train_rows: int
    """Train rows of the configuration."""
    heldout_rows: int
    """Held-out rows of the configuration."""
    pools: dict[str, int]
    """Rows of each pool: `pareto`, `minibatch`, `reflection` and `heldout`."""
    limits: dict[str, int | None]
    """Most rollouts: `train`, `heldout`, and `total` where both share one limit."""
    seed_evaluation: int
    """Rollouts that measure the seed on the train rows."""
    per_generation: dict[str, int]
    """Rollouts of one generation: `reference`, `minibatch`, `full_train` and `worst_case`."""
    heldout_evaluation: int
    """Rollouts of the held-out evaluation."""
    worst_case_rollouts: int
    """No run makes more."""
    proposals: Bounds
    """Proposals that the limits buy."""
    generations: Bounds
    """Generations that bring them."""
    cost: PlannedCost
    """What it costs at worst."""
    notes: tuple[str, ...]
    """What the numbers do not say."""

    @classmethod
    def from_native(cls, known: Mapping[str, Any]) -> RunPlan:
        """Read a plan as the core writes it."""
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
class Blocker:
    """One thing that stands in the way of a run, or that is worth knowing."""

    stage: str
    """Where it was found: `config`, `output`, `cache`, `container`, `task`, `proposer` or `budget`."""
    code: str
    """A stable code: of the error table, or of a finding."""
    field: str | None
    """The dotted path of the setting, where there is one."""
    place: str | None
    """Where it stands, such as `gepa.toml:17:18`, for what is written in the configuration."""
    message: str
    """What is wrong, with the value."""
    hint: str
    """What to do."""
    retryable: bool
    """Whether it may go away by itself."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Everything that stands in the way of a run, found without paying for anything."""

    ok: bool
    """Whether the run can begin."""
    blockers: tuple[Blocker, ...]
    """What must be mended first."""
    warnings: tuple[Blocker, ...]
    """What is worth knowing."""
    facts: dict[str, Any] = field(repr=False)
    """What `container`, `proposer` and `rows` turned out to be; `None` where nobody could be asked."""
    plan: RunPlan | None = field(repr=False)
    """The arithmetic of the run."""

    @classmethod
    def from_native(cls, known: Mapping[str, Any]) -> CheckReport:
        """Read a report as the core writes it."""
        plan = known["plan"]
        return cls(
            ok=known["ok"],
            blockers=tuple(Blocker(**found) for found in known["blockers"]),
            warnings=tuple(Blocker(**found) for found in known["warnings"]),
            facts=known["facts"],
            plan=None if plan is None else RunPlan.from_native(plan),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain objects."""
        return asdict(self)


def check_toml(
    path: str | PathLike[str], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> CheckReport:
    """Return everything that stands in the way of the run of a TOML file, problems of the file included.

    What rests on a section with a problem is not looked at; all the rest is. A file that is not TOML raises
    `OptimizerTomlDecodeError`.
    """
    return check_native(try_load_config(path, overrides=overrides, environ=environ))


def check_native(config: LoadedConfig) -> CheckReport:
    """Check a configuration of the core."""
    return CheckReport.from_native(check_run(config, codex_runtime=codex_runtime()))
