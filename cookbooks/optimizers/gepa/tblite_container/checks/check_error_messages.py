"""The messages of the lines of a log that have the level ERROR."""

# ruff: noqa: S101 (checks assert)
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tblite_container.judge import CheckCase


def expected(inputs: list[str]) -> str:
    """Return the right output."""
    lines = [line.split(" ", 2) for line in inputs[0].splitlines()]
    return "".join(f"{message}\n" for _, level, message in lines if level == "ERROR")


def test_date_and_level_are_left_out(case: CheckCase) -> None:
    """Only the message is printed."""
    has_more = any("ERROR" in line or line[:1].isdigit() for line in case.lines)
    assert not has_more, "a date or a level is left"


def test_there_is_one_line_for_each_error(case: CheckCase) -> None:
    """Lines of other levels are left out."""
    assert len(case.lines) == case.text.count(" ERROR "), "not one line for each ERROR"


def test_output_is_right(case: CheckCase) -> None:
    """Nothing is missing, wrong or too much."""
    assert case.output == expected(list(case.inputs)), "the output differs from the right one"
