"""The line of a table with the largest number."""

# ruff: noqa: S101 (checks assert)
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tblite_container.judge import CheckCase


def expected(inputs: list[str]) -> str:
    """Return the right output."""
    return max(inputs[0].splitlines(), key=lambda line: int(line.split(",")[1])) + "\n"


def test_output_is_one_line_of_the_input(case: CheckCase) -> None:
    """The line is whole and alone."""
    assert len(case.lines) == 1, "the output is not one line"
    assert case.lines[0] in case.text.splitlines(), "the output is not a line of the input"


def test_output_is_right(case: CheckCase) -> None:
    """Nothing is missing, wrong or too much."""
    assert case.output == expected(list(case.inputs)), "the output differs from the right one"
