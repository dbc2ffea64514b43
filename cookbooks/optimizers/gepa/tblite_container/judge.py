"""The plugin through which pytest is told the cases and tells its verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Given:
    """A case as a check sees it."""

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
    """What one check found for one case."""

    check: str
    case: str
    passed: bool
    message: str


class Judge:
    """Gives every check every case, and keeps what it finds."""

    def __init__(self, cases: Sequence[dict[str, Any]]) -> None:
        self.cases = [Given(case["name"], tuple(case["inputs"]), case["output"]) for case in cases]
        self.findings: list[Finding] = []

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a check once for each case."""
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", self.cases, ids=[case.name for case in self.cases])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the verdict of a check."""
        if report.when == "call" or report.failed:
            name = report.nodeid.rpartition("::")[2]
            check, _, case = name.removesuffix("]").partition("[")
            crash = getattr(report.longrepr, "reprcrash", None)
            message = str(crash.message).splitlines()[0].removeprefix("AssertionError: ") if crash else ""
            self.findings.append(Finding(check.removeprefix("test_"), case, report.passed, message))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep it as a verdict that a file of checks could not be read."""
        if report.failed:
            self.findings.append(Finding("collection", "", passed=False, message=str(report.longrepr)[-500:]))

    def verdicts(self) -> list[dict[str, Any]]:
        """Return all verdicts, in the order of the checks."""
        return [asdict(finding) for finding in self.findings]
