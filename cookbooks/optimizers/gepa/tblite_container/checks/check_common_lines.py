"""The lines that two lists have in common."""

# ruff: noqa: S101 (checks assert)
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tblite_container.judge import CheckCase


def expected(inputs: list[str]) -> str:
    """Return the right output."""
    both = set(inputs[0].splitlines()) & set(inputs[1].splitlines())
    return "".join(f"{line}\n" for line in sorted(both))


def test_every_line_is_in_both_files(case: CheckCase) -> None:
    """No line is of one file alone."""
    first, second = (set(text.splitlines()) for text in case.inputs)
    assert set(case.lines) <= first & second, "a line is not in both files"


def test_lines_are_sorted(case: CheckCase) -> None:
    """They are in alphabetical order."""
    assert case.lines == sorted(case.lines), "the lines are not sorted"


def test_output_is_right(case: CheckCase) -> None:
    """Nothing is missing, wrong or too much."""
    assert case.output == expected(list(case.inputs)), "the output differs from the right one"
