"""The sum of all numbers of a table."""

# ruff: noqa: S101 (checks assert)
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tblite_container.judge import CheckCase


def expected(inputs: list[str]) -> str:
    """Return the right output."""
    return f"{sum(int(line.split(',')[1]) for line in inputs[0].splitlines())}\n"


def test_output_is_one_number(case: CheckCase) -> None:
    """A number and nothing else."""
    assert case.output.strip().isdigit(), "the output is not one number"


def test_total_is_right(case: CheckCase) -> None:
    """Spaces around the number do no harm."""
    assert case.output.strip() == expected(list(case.inputs)).strip(), "the total is wrong"
