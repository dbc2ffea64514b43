"""`docs/errors.md`: every error, every exit code and every finding about a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pages.markdown import code, generated_from, page, table
from pages.rust_tokens import NotUnderstood, Reader

CONFIG = "rust/crates/synth_optimizer_platform/src/config"

INTRO = """\
# Errors

Every error has a stable code to match on. In Python it is the attribute `error_code` of the exception, on the command
line it stands before the message, and in the HTTP service it is `error.error_code` of the reply, beside a more precise
`error.code` ([refusals](service.md#refusals)). The class is that of the *cause*: a readonly run that misses an answer
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

# What each exit code means, beside the errors of the table.
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

# What each code of a finding means.
CODES = {
    "bad_key_variable": "A field that takes the name of a variable holds something else, perhaps a key.",
    "bad_prefix": "The prefix cannot begin a candidate id.",
    "bad_run_id": "The id cannot name a run and its directory.",
    "bad_set": "A `--set` is not of the form `key.path=value`.",
    "bad_url": "The address is not one that can be called.",
    "blank": "A text is empty.",
    "budget_too_small": "The rollouts do not suffice to measure the seed candidate.",
    "contradiction": "Two fields cannot both be as they are.",
    "credential_in_config": "The name or the value looks like a credential.",
    "duplicate": "Something is named twice.",
    "estimate_required": "A limit needs an estimate of what one call uses.",
    "given_twice": "Two names of one field are both given.",
    "heldout_metric": "A stop rule is to look at held-out rows, which are measured later; it looks at train rows.",
    "home_path": "A path begins with `~`, which only a shell replaces.",
    "minibatch_without_reflection": "The proposer sees no traces of some rows of the minibatch pool.",
    "narrow_window": "The window is too narrow for generations to overlap.",
    "out_of_range": "A number is too small, too large or not finite.",
    "pool_outside": "A pool names a row that is not among the rows.",
    "proxy_not_enforced": "The policy may go round the proxy that holds its credentials.",
    "readonly_namespace": "A readonly run reads the namespace of its own id.",
    "refused_value": "The value is known and refused.",
    "required": "A field that must be given is missing.",
    "syntax": "The file is not valid TOML.",
    "time_too_short": "The time limit leaves no room for one proposer turn.",
    "too_many": "More was found than is listed.",
    "train_heldout_overlap": "A row is both a train row and a held-out row.",
    "unknown_key": "No field or section has this name.",
    "unknown_objective": "The objective is not declared.",
    "unknown_value": "The field does not take this word.",
    "unused_option": "The option belongs to a method that is not chosen.",
    "variable_not_read": "The environment variable of an older release is not read any more.",
    "wrong_type": "The value is of another type.",
}


def render(root: Path, errors: Iterable[Mapping[str, Any]]) -> str:
    """Return the page."""
    rows = list(errors)
    found = finding_codes(root / CONFIG)
    _same("finding code", found.keys(), CODES.keys())
    _same("exit code", {row["exit_code"] for row in rows} | {0, 129, 143}, MEANINGS.keys())
    codes = [
        [code(row["error_code"]), code(row["exception"]), str(row["exit_code"]), str(row["http_status"]), row["hint"]]
        for row in rows
    ]
    return page(
        generated_from("`synth_optimizers.errors.error_table()`", CONFIG),
        INTRO,
        table(["code", "exception", "exit code", "HTTP status", "hint"], codes),
        EXITS,
        table(["exit code", "meaning", "errors"], [_exit(number, rows) for number in MEANINGS]),
        FINDINGS,
        table(["code", "weight", "meaning"], [[code(name), found[name], CODES[name]] for name in sorted(found)]),
    )


def finding_codes(directory: Path) -> dict[str, str]:
    """Return every code of a finding that the source can give, with its weight."""
    weights: dict[str, set[str]] = {}
    for path in sorted(directory.rglob("*.rs")):
        if path.stem.endswith("_tests"):
            continue
        reader = Reader(path)
        for place, token in enumerate(reader.tokens):
            reader.at = place
            if token.text in {"error", "warn"} and reader.peek(1) == "(" and reader.peek(-1) == ".":
                reader.take(token.text, "(")
                weights.setdefault(reader.string(), set()).add("error" if token.text == "error" else "warning")
            elif token.text == "Finding" and reader.peek(1) == "{" and reader.peek(2) == "severity":
                _finding(reader, weights)
    return {name: " or ".join(sorted(weight)) for name, weight in weights.items()}


def _finding(reader: Reader, weights: dict[str, set[str]]) -> None:
    """Read `Finding { severity: Severity::X, code: "..."`; one that is handed its code is read where it is called."""
    reader.take("Finding", "{", "severity")
    if reader.take_if(","):
        return
    reader.take(":", "Severity", ":", ":")
    weight = reader.kind("word").lower()
    reader.take(",", "code")
    if reader.take_if(":"):
        weights.setdefault(reader.string(), set()).add(weight)


def _exit(number: int, rows: list[Mapping[str, Any]]) -> list[str]:
    names = [code(row["exception"]) for row in rows if row["exit_code"] == number]
    return [str(number), MEANINGS[number], ", ".join(names)]


def _same(what: str, found: Iterable[Any], described: Iterable[Any]) -> None:
    for name in sorted(set(found) - set(described)):
        raise NotUnderstood(f"errors_page.py does not say what the {what} {name} means")
    for name in sorted(set(described) - set(found)):
        raise NotUnderstood(f"errors_page.py describes the {what} {name}, which does not exist")
