"""`gepa check` and `gepa run --dry-run`: what stands in the way of a run, and what it would do at most."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from synth_optimizers.cli.faults import Refusal, exit_code_of, fault_of
from synth_optimizers.cli.options import config_option, json_option, log_options, set_option
from synth_optimizers.cli.output import is_terminal, say, table, write_json, write_lines, write_text
from synth_optimizers.cli.words import money
from synth_optimizers.errors import OptimizerIoError, OptimizerTomlDecodeError
from synth_optimizers.findings import Finding
from synth_optimizers.preflight import check_toml
from synth_optimizers.run import GepaRun

STAGE_CODES = {"config": 2, "output": 1, "cache": 1, "container": 3, "task": 3, "proposer": 3, "budget": 5}
"""Exit codes of findings that are no errors of the one table."""


def load(config: Path, overrides: Sequence[str]) -> GepaRun:
    """Read a configuration file; one that cannot be read is a matter of usage."""
    try:
        return GepaRun.from_toml(config, overrides)
    except OptimizerIoError as error:
        fault = fault_of(error)
        raise Refusal(fault.message, fault.hint, fault.detail) from error


@click.command(short_help="Find every problem at once, before anything is spent.")
@config_option
@set_option
@json_option
@click.option("--explain", is_flag=True, help="Show every effective value and where it comes from.")
@log_options("warn")
def check(config: Path, overrides: tuple[str, ...], as_json: bool, explain: bool) -> int:
    """Find every problem at once: configuration, output, cache, container, task, proposer and budget."""
    if is_terminal(sys.stderr):
        say(f"checking {config}: its container and proposer are asked, nothing is paid for")
    report = _report(config, overrides)
    values = load(config, overrides).config.explain() if explain and report["ok"] else []
    if as_json:
        explained = [{"path": value.path, "value": value.value, "origin": value.origin} for value in values]
        write_json({**report, "values": explained} if explain else report)
    else:
        if values:
            table(("field", "origin", "value"), [(value.path, value.origin, _short(value.value)) for value in values])
            write_text("")
        _write(report, config)
    if report["ok"]:
        return 0
    first = report["blockers"][0]
    return exit_code_of(first["code"], STAGE_CODES.get(first["stage"], 1))


def _report(config: Path, overrides: Sequence[str]) -> dict[str, Any]:
    try:
        return check_toml(config, overrides).to_dict()
    except OptimizerTomlDecodeError as error:
        # Nothing can be looked at before the file is TOML.
        blockers = [_blocker(found) for found in error.findings]
        if not blockers:
            raise
        return _refused(blockers)
    except OptimizerIoError as error:
        fault = fault_of(error)
        alone = {"stage": "config", "code": "usage_error", "field": None, "place": None, "retryable": False}
        return _refused([{**alone, "message": fault.message, "hint": fault.hint}])


def _refused(blockers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the report of a file that cannot be looked into."""
    return {"ok": False, "blockers": blockers, "warnings": [], "facts": {}, "plan": None}


def _blocker(found: Finding) -> dict[str, Any]:
    place = found.source if found.line is None else f"{found.source}:{found.line}:{found.column}"
    known = {"code": found.code, "field": found.field or None, "message": found.message, "hint": found.hint}
    return {"stage": "config", **known, "place": place, "retryable": False}


def _write(report: Mapping[str, Any], config: Path) -> None:
    for kind in ("blockers", "warnings"):
        for problem in report[kind]:
            field, place = problem.get("field"), problem.get("place")
            where = f"{place} ({field})" if place and field else place or field
            word = "error" if kind == "blockers" else "warning"
            write_text(f"{word}[{problem['stage']}/{problem['code']}]: {problem['message']}")
            if where:
                write_text(f"  --> {where}")
            if problem.get("hint"):
                write_text(f"  hint: {problem['hint']}")
    if report["ok"]:
        write_lines([*_facts(report["facts"]), *(_plan_lines(report["plan"]) if report["plan"] else [])], 20)
        write_text(f"{config} can be run")
    else:
        count = len(report["blockers"])
        write_text(f"{config} cannot be run: {count} problem{'' if count == 1 else 's'}")


def _facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = []
    container, proposer = facts.get("container"), facts.get("proposer")
    if container:
        speaks = f"{container['contract_version']}, {' and '.join(container['dialects'])}"
        lines.append(("container", f"{container['program_id']} at {container['url']} ({speaks})"))
        lines.append(("fields", ", ".join(container["fields"])))
    if proposer:
        program = " ".join(f"{proposer['backend']} {proposer['version']}".split())
        lines.append(("proposer", f"{program} with {proposer['model']} at {proposer['program']}"))
        lines.append(("sandbox", proposer["sandbox"]))
    return lines


def _short(value: Any, longest: int = 60) -> str:  # noqa: ANN401
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def show_plan(run: GepaRun, *, as_json: bool) -> int:
    """Write the plan of a run."""
    plan = run.plan().to_dict()
    if as_json:
        write_json(plan)
        return 0
    write_lines(_plan_lines(plan), 20)
    return 0


def _plan_lines(plan: dict[str, Any]) -> list[tuple[str, str]]:
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
