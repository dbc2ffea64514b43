"""`docs/reference/errors.md`: every error, every exit code and every configuration finding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pages import UnsupportedExport
from pages.markdown import code, generated_from, page, table

INTRO = """\
# Errors

Every error has a stable code to match on. In Python it is the attribute `error_code` of the exception, on the command
line it stands before the message, and in the HTTP service it is `error.error_code` of the reply, beside a more precise
`error.code` ([refusals](http.md#refusals)). The class is that of the *cause*: a readonly run that misses an answer
raises `CacheMissError`, not `RunFailedError`.

An exception has `error_code`, `detail` (more about it, or `None`), `hint` (what to do) and `findings` (every finding,
for problems of a configuration). All of them are subclasses of `SynthOptimizerError`, which is a `RuntimeError`. The
hint in the table is the one that is given when nothing more precise is known."""

EXITS = """\
## Exit codes

What the command line ends with."""

FINDINGS = """\
## Findings

A `ConfigError` and an `OptimizerTomlDecodeError` carry one finding for every problem, with a code, the field, the
place, what is wrong and a hint. Warnings do not stop a run; they are in `GepaConfig.warnings`."""

# The meaning of each exit code, besides the errors of the table.
MEANINGS = {
    0: "Done.",
    1: "The run failed, two feeds differ, or something is wrong on this machine.",
    2: "The command or the configuration is wrong.",
    3: "The container or the proposer cannot be reached or does not keep its contract.",
    4: "A readonly run misses an answer in the cache.",
    5: "The budget forbids the work.",
    129: "The terminal was closed (SIGHUP).",
    130: "Interrupted (Ctrl-C) or cancelled.",
    143: "Ended by SIGTERM.",
}


def render(errors: Iterable[Mapping[str, Any]], findings: Iterable[Mapping[str, Any]]) -> str:
    """Return the page."""
    rows = list(errors)
    _same({row["exit_code"] for row in rows} | {0, 129, 143}, MEANINGS.keys())
    codes = [
        [code(row["error_code"]), code(row["exception"]), str(row["exit_code"]), str(row["http_status"]), row["hint"]]
        for row in rows
    ]
    found = sorted(findings, key=lambda row: row["code"])
    return page(
        generated_from("`error_table()`", "`config_findings()`", source="rust/crates/synth_optimizer_core/src"),
        INTRO,
        table(["code", "exception", "exit code", "HTTP status", "hint"], codes),
        EXITS,
        table(["exit code", "meaning", "errors"], [_exit(number, rows) for number in MEANINGS]),
        FINDINGS,
        table(
            ["code", "weight", "meaning"],
            [[code(row["code"]), row["severity"] or "error or warning", row["about"]] for row in found],
        ),
    )


def _exit(number: int, rows: list[Mapping[str, Any]]) -> list[str]:
    names = [code(row["exception"]) for row in rows if row["exit_code"] == number]
    return [str(number), MEANINGS[number], ", ".join(names)]


def _same(found: Iterable[int], described: Iterable[int]) -> None:
    for number in sorted(set(found) - set(described)):
        raise UnsupportedExport(f"errors_page.py does not say what the exit code {number} means")
    for number in sorted(set(described) - set(found)):
        raise UnsupportedExport(f"errors_page.py describes the exit code {number}, which does not exist")
