"""The pytest plugin that supplies the cases and collects the verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class CheckCase:
    """A case as a check receives it."""

    name: str
    inputs: tuple[str, ...]
    output: str

    @property
    def text(self) -> str:
        """The only input."""
        return self.inputs[0]

    @property
    def lines(self) -> list[str]:
        """The lines of the output."""
        return self.output.splitlines()


@dataclass(frozen=True)
class Finding:
    """The finding of one check for one case."""

    check: str
    case: str
    passed: bool
    message: str


class CheckPlugin:
    """Runs every check on every case, and collects the findings."""

    def __init__(self, cases: Sequence[dict[str, Any]]) -> None:
        self.cases = [CheckCase(case["name"], tuple(case["inputs"]), case["output"]) for case in cases]
        self.findings: list[Finding] = []

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize a check with all cases."""
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", self.cases, ids=[case.name for case in self.cases])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the verdict of a check."""
        if report.when == "call" or report.failed:
            name = report.nodeid.rpartition("::")[2]
            check, _, case = name.removesuffix("]").partition("[")
            crash = getattr(report.longrepr, "reprcrash", None)
            message = str(crash.message).splitlines()[0].removeprefix("AssertionError: ") if crash else ""
            self.findings.append(Finding(check.removeprefix("test_"), case, report.passed, message))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a failed import of a check file as a verdict."""
        if report.failed:
            self.findings.append(Finding("collection", "", passed=False, message=str(report.longrepr)[-500:]))

    def verdicts(self) -> list[dict[str, Any]]:
        """Return all verdicts, in the order of the checks."""
        return [asdict(finding) for finding in self.findings]
