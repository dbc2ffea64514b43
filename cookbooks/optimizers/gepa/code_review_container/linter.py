"""The linter `ruff`: its documented rules, and the findings of all rules in many files at once."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruff import find_ruff_bin  # type: ignore[import-untyped, import-not-found, unused-ignore]


@dataclass(frozen=True)
class Rule:
    """A rule of the linter, with its documentation."""

    code: str
    name: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """A finding of a rule on a line."""

    line: int
    code: str
    message: str


def ruff(*options: str) -> Any:  # noqa: ANN401 (any JSON value)
    """Return the JSON output of the linter."""
    command = [find_ruff_bin(), *options, "--output-format", "json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)  # noqa: S603


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """Return the stable rules of the linter."""
    entries = [entry for entry in ruff("rule", "--all") if "Stable" in entry["status"] and entry["linter"]]
    return tuple(Rule(entry["code"], entry["name"], texts_of(entry)) for entry in entries)


def texts_of(entry: dict[str, Any]) -> tuple[str, ...]:
    """Return the texts that describe a rule: its name, its message, and the start of its explanation."""
    what = re.search(r"## What it does\n(.*?)(?:\n\n|$)", entry["explanation"] or "", re.DOTALL)
    said = what[1].removeprefix("Checks for ").replace("\n", " ") if what else ""
    summary = re.sub(r"\{[^}]*\}", " ", entry["summary"])
    return tuple(text for text in (entry["name"].replace("-", " "), summary, said) if text.strip(" `"))


def lint(sources: Iterable[str]) -> list[tuple[Finding, ...]]:
    """Return the findings of all rules in each source, from one linter process."""
    with tempfile.TemporaryDirectory() as directory:
        paths = []
        for number, source in enumerate(sources):
            paths.append(Path(directory, f"source_{number}.py"))
            paths[-1].write_text(source, encoding="utf-8")
        found: dict[str, list[Finding]] = {path.name: [] for path in paths}
        for entry in ruff("check", "--isolated", "--no-cache", "--select", "ALL", "--exit-zero", directory):
            if entry["code"]:
                finding = Finding(entry["location"]["row"], entry["code"], entry["message"])
                found[Path(entry["filename"]).name].append(finding)
    return [tuple(sorted(found[path.name], key=lambda finding: (finding.line, finding.code))) for path in paths]
