"""`gepa check` and `gepa run --dry-run`: preflight findings and the plan of a run."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from synth_optimizers.cli.errors import CommandError, error_report, exit_code_for
from synth_optimizers.cli.formatting import format_cost, one_line, pluralize
from synth_optimizers.cli.options import config_option, json_option, log_options, set_option
from synth_optimizers.cli.output import is_terminal, print_message, write_json, write_lines, write_table, write_text
from synth_optimizers.errors import OptimizerIoError, OptimizerTomlDecodeError
from synth_optimizers.findings import Finding
from synth_optimizers.preflight import Bounds, CheckReport, PreflightFinding, RunPlan, check_toml
from synth_optimizers.run import GepaRun

STAGE_CODES = {"config": 2, "output": 1, "cache": 1, "container": 3, "task": 3, "proposer": 3, "budget": 5}
"""Exit codes of findings whose code is not in the error table, by preflight stage."""


def load(config: Path, overrides: Sequence[str]) -> GepaRun:
    """Load a configuration file; raise a usage error if the file cannot be read."""
    try:
        return GepaRun.from_toml(config, overrides)
    except OptimizerIoError as error:
        report = error_report(error)
        raise CommandError(report.message, report.hint, report.detail) from error


@click.command(short_help="Check configuration, container and proposer without starting a run.")
@config_option
@set_option
@json_option
@click.option("--explain", is_flag=True, help="Show every effective value with its origin.")
@log_options("warn")
def check(config: Path, overrides: tuple[str, ...], as_json: bool, explain: bool) -> int:
    """Find every problem at once: configuration, output, cache, container, task, proposer and budget."""
    if is_terminal(sys.stderr):
        print_message(f"checking {config} with its container and proposer; no run is started")
    report = _run_check(config, overrides)
    values = load(config, overrides).config.explain() if explain and report.ok else []
    if as_json:
        explained = {"values": [asdict(value) for value in values]} if explain else {}
        write_json({**report.to_dict(), **explained})
    else:
        if values:
            write_table(
                ("field", "origin", "value"),
                [(value.path, value.origin, _short_value(value.value)) for value in values],
            )
            write_text("")
        _write_report(report, config)
    if report.ok:
        return 0
    first = report.blockers[0]
    return exit_code_for(first.code, STAGE_CODES.get(first.stage, 1))


def _run_check(config: Path, overrides: Sequence[str]) -> CheckReport:
    try:
        return check_toml(config, overrides)
    except OptimizerTomlDecodeError as error:
        # Preflight cannot start until the file parses as TOML.
        blockers = tuple(_to_preflight_finding(found) for found in error.findings)
        if not blockers:
            raise
    except OptimizerIoError as error:
        report = error_report(error)
        blockers = (
            PreflightFinding("config", "usage_error", None, None, report.message, report.hint, retryable=False),
        )
    return CheckReport(ok=False, blockers=blockers, warnings=(), facts={}, plan=None)


def _to_preflight_finding(found: Finding) -> PreflightFinding:
    place = found.source if found.line is None else f"{found.source}:{found.line}:{found.column}"
    return PreflightFinding(
        "config", found.code, found.field or None, place, found.message, found.hint, retryable=False
    )


def write_findings(report: CheckReport, write: Callable[[str], None] = print_message) -> None:
    """Write every finding with its place and its hint."""
    for word, problems in (("error", report.blockers), ("warning", report.warnings)):
        for problem in problems:
            field, location = problem.field, problem.location
            where = f"{location} ({field})" if location and field else location or field
            write(f"{word}[{problem.stage}/{problem.code}]: {problem.message}")
            if where:
                write(f"  --> {where}")
            if problem.hint:
                write(f"  hint: {problem.hint}")


def _write_report(report: CheckReport, config: Path) -> None:
    write_findings(report, write_text)
    if report.ok:
        write_lines([*_fact_lines(report.facts), *(_plan_lines(report.plan) if report.plan else [])], 20)
        write_text(f"{config} can be run")
    else:
        write_text(f"{config} cannot be run: {pluralize(len(report.blockers), 'problem')}")


def _fact_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
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


def _short_value(value: Any) -> str:  # noqa: ANN401
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str), 60)


def show_plan(run: GepaRun, *, as_json: bool, splits: Mapping[str, Sequence[str]] | None = None) -> int:
    """Print the plan of a run. `splits` are the task ids of its container, where they are known."""
    plan = run.plan(splits)
    if as_json:
        write_json(plan.to_dict())
    else:
        write_lines(_plan_lines(plan), 20)
    return 0


def _plan_lines(plan: RunPlan) -> list[tuple[str, str]]:
    """Return the plan as pairs of label and text."""
    once, cost = plan.per_generation, plan.cost
    unknown = f"unknown. {cost.unknown_reason}." if cost.unknown_reason else "unknown"
    limits = {name: "none" if most is None else f"{most:,}" for name, most in plan.limits.items()}
    if plan.train_rows is None:
        return [
            ("rows", "all rows of the container"),
            ("limits", ", ".join(f"{name} {most}" for name, most in limits.items())),
            ("at once", _format_at_once(plan.at_once)),
            ("in all", f"at most {plan.worst_case_rollouts:,} rollouts"),
            *(("note", note) for note in plan.notes),
        ]
    later = "for a glance and its share of a check" if plan.search == "sprint" else "to evaluate fully"
    return [
        ("rows", f"{plan.train_rows} train, {plan.heldout_rows} held-out"),
        ("pools", ", ".join(f"{name} {count}" for name, count in plan.pools.items())),
        ("limits", ", ".join(f"{name} {most}" for name, most in limits.items())),
        ("search", f"{plan.search}: {plan.search_reason}"),
        ("seed evaluation", f"{plan.seed_evaluation:,} rollouts"),
        (
            "one generation",
            f"at most {once['worst_case']:,} rollouts with retries: {once['reference']} for the parent, "
            f"{once['minibatch']} to screen, {once['full_train']} {later}",
        ),
        ("at once", _format_at_once(plan.at_once)),
        ("held-out", f"{plan.heldout_evaluation:,} rollouts"),
        ("in all", f"at most {plan.worst_case_rollouts:,} rollouts"),
        ("generations", _format_bounds(plan.generations)),
        ("proposals", _format_bounds(plan.proposals)),
        ("cost", f"at most {format_cost(cost.worst_case_usd)}" if cost.known else unknown),
        *(("note", note) for note in plan.notes),
    ]


def _format_at_once(most: Mapping[str, int]) -> str:
    parts = [pluralize(most[f"{noun.replace(' ', '_')}s"], noun) for noun in ("rollout", "generation", "proposer turn")]
    return f"at most {parts[0]}, {parts[1]} and {parts[2]}"


def _format_bounds(found: Bounds) -> str:
    most = f"{found.at_most:,}"
    return most if found.at_least == found.at_most else f"{found.at_least:,} to {most}"
