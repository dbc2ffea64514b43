"""A configuration without its comments and empty lines."""

# ruff: noqa: S101 (checks assert)
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tblite_container.judge import CheckCase


def expected(inputs: list[str]) -> str:
    """Return the right output."""
    return "".join(f"{line}\n" for line in inputs[0].splitlines() if line and not line.startswith("#"))


def test_no_comment_is_left(case: CheckCase) -> None:
    """Lines that begin with # are gone."""
    assert not any(line.startswith("#") for line in case.lines), "a comment is left"


def test_no_empty_line_is_left(case: CheckCase) -> None:
    """Empty lines are gone."""
    assert all(case.lines), "an empty line is left"


def test_output_is_right(case: CheckCase) -> None:
    """Nothing is missing, wrong or too much."""
    assert case.output == expected(list(case.inputs)), "the output differs from the right one"
