"""`gepa run --dry-run`: what a run would do at most, without contacting anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from synth_optimizers.cli.output import write_json, write_text
from synth_optimizers.cli.words import money

if TYPE_CHECKING:
    from synth_optimizers.run import GepaRun

__all__ = ["plan_lines", "show_plan"]


def show_plan(run: GepaRun, *, as_json: bool) -> int:
    """Write the plan of a run."""
    plan = run.plan().to_dict()
    if as_json:
        write_json(plan)
        return 0
    for label, text in plan_lines(plan):
        write_text(f"{label:<20}{text}".rstrip())
    return 0


def plan_lines(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a plan as label and text."""
    pools, limits, per_generation = plan["pools"], plan["limits"], plan["per_generation"]
    lines = [
        ("rows", f"{plan['train_rows']} train, {plan['heldout_rows']} held-out"),
        ("pools", ", ".join(f"{name} {count}" for name, count in pools.items())),
        ("limits", ", ".join(f"{name} {_count(count)}" for name, count in limits.items())),
        ("seed evaluation", _rollouts(plan["seed_evaluation"])),
        (
            "one generation",
            f"at most {_rollouts(per_generation['worst_case'])} with retries: {per_generation['reference']} for the "
            f"parent, {per_generation['minibatch']} to screen, {per_generation['full_train']} to evaluate fully",
        ),
        ("held-out", _rollouts(plan["heldout_evaluation"])),
        ("in all", f"at most {_rollouts(plan['worst_case_rollouts'])}"),
        ("generations", _range(plan["generations"])),
        ("proposals", _range(plan["proposals"])),
        ("cost", _cost(plan["cost"])),
    ]
    return lines + [("note", note) for note in plan["notes"]]


def _count(count: int | None) -> str:
    return "none" if count is None else f"{count:,}"


def _rollouts(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,} rollouts"


def _range(found: dict[str, Any] | int | None) -> str:
    if not isinstance(found, dict):
        return _count(found)
    least, most = found.get("at_least"), found.get("at_most")
    return f"{_count(most)}" if least == most else f"{_count(least)} to {_count(most)}"


def _cost(cost: dict[str, Any]) -> str:
    if cost["known"]:
        return f"at most {money(cost['worst_case_usd'])}"
    return f"unknown. {cost['why_unknown']}." if cost.get("why_unknown") else "unknown"
