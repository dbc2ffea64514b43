"""How many lines each key of a table has, by key."""

# ruff: noqa: S101 (checks assert)
from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tblite_container.judge import CheckCase


def expected(inputs: list[str]) -> str:
    """Return the right output."""
    counts = Counter(line.split(",")[0] for line in inputs[0].splitlines())
    return "".join(f"{count} {key}\n" for key, count in sorted(counts.items()))


def test_there_is_one_line_for_each_key(case: CheckCase) -> None:
    """No key is missing, none is there twice."""
    keys = {line.split(",")[0] for line in case.text.splitlines()}
    assert sorted(line.split(" ")[-1] for line in case.lines) == sorted(keys), "not one line for each key"


def test_lines_are_a_count_a_space_and_a_key(case: CheckCase) -> None:
    """The form is as it was asked for."""
    is_well = bool(case.lines) and all(line.partition(" ")[0].isdigit() for line in case.lines)
    assert is_well, "a line is not a count, a space and a key"


def test_output_is_right(case: CheckCase) -> None:
    """Nothing is missing, wrong or too much."""
    assert case.output == expected(list(case.inputs)), "the output differs from the right one"
