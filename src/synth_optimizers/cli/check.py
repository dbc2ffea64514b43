"""`gepa check`: every problem of a run at once, before anything is spent."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from synth_optimizers.cli.carry import load
from synth_optimizers.cli.faults import Refusal, exit_code_of, fault_of
from synth_optimizers.cli.output import is_terminal, say, table, write_json, write_text
from synth_optimizers.cli.plan import plan_lines
from synth_optimizers.errors import ConfigError, OptimizerTomlDecodeError
from synth_optimizers.run import GepaRun

__all__ = ["check_config"]

STAGE_CODES = {"config": 2, "output": 1, "cache": 1, "container": 3, "task": 3, "proposer": 3, "budget": 5}


def check_config(config: Path, overrides: Sequence[str], *, as_json: bool, explain: bool) -> int:
    """Check a configuration and everything that it needs; the exit code is that of the first blocker."""
    run, report = _report(config, overrides)
    values = [] if run is None or not explain else run.config.explain()
    if as_json:
        explained = [{"path": value.path, "value": value.value, "origin": value.origin} for value in values]
        write_json({**report, "values": explained} if explain else report)
    else:
        if values:
            table(("field", "origin", "value"), [(value.path, value.origin, _short(value.value)) for value in values])
            write_text("")
        _write(report, config)
    return 0 if report["ok"] else _exit_code(report["blockers"][0])


def _report(config: Path, overrides: Sequence[str]) -> tuple[GepaRun | None, dict[str, Any]]:
    try:
        run = load(config, overrides)
    except (ConfigError, OptimizerTomlDecodeError, Refusal) as error:
        blockers = _config_blockers(error)
        return None, {"ok": False, "blockers": blockers, "warnings": [], "facts": {}, "plan": None}
    if is_terminal(sys.stderr):
        say(f"checking {config}: its container and proposer are asked, nothing is paid for")
    return run, run.check().to_dict()


def _config_blockers(error: Exception) -> list[dict[str, Any]]:
    fault = fault_of(error)
    if not fault.findings:
        alone = {"stage": "config", "code": fault.code, "field": "", "message": fault.message, "hint": fault.hint}
        return [{**alone, "place": "", "retryable": False}]
    return [
        {
            "stage": "config",
            "code": finding.code,
            "field": finding.field,
            "message": finding.message,
            "hint": finding.hint,
            "place": finding.source if finding.line is None else f"{finding.source}:{finding.line}:{finding.column}",
            "retryable": False,
        }
        for finding in fault.findings
        if finding.severity == "error"
    ]


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
        for label, text in [*_facts(report["facts"]), *(plan_lines(report["plan"]) if report["plan"] else [])]:
            write_text(f"{label:<20}{text}".rstrip())
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


def _exit_code(blocker: Mapping[str, Any]) -> int:
    return exit_code_of(blocker["code"], STAGE_CODES.get(blocker["stage"], 1))
