"""Lines without repeats, in the order of their first appearance."""

# ruff: noqa: S101 (checks assert)
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tblite_container.judge import CheckCase


def expected(inputs: list[str]) -> str:
    """Return the right output."""
    return "".join(f"{line}\n" for line in dict.fromkeys(inputs[0].splitlines()))


def test_no_line_is_repeated(case: CheckCase) -> None:
    """Each line is there once."""
    assert len(set(case.lines)) == len(case.lines), "a line is repeated"


def test_no_line_is_lost_or_new(case: CheckCase) -> None:
    """The lines are those of the input."""
    assert set(case.lines) == set(case.text.splitlines()), "a line is lost or new"


def test_output_is_right(case: CheckCase) -> None:
    """Nothing is missing, wrong or too much."""
    assert case.output == expected(list(case.inputs)), "the output differs from the right one"
