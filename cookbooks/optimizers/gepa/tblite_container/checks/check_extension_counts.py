"""How many files of a list each extension has, by extension."""

# ruff: noqa: S101 (checks assert)
from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tblite_container.judge import CheckCase


def expected(inputs: list[str]) -> str:
    """Return the right output."""
    counts = Counter(line.rpartition(".")[2] for line in inputs[0].splitlines())
    return "".join(f"{count} {extension}\n" for extension, count in sorted(counts.items()))


def test_there_is_one_line_for_each_extension(case: CheckCase) -> None:
    """No extension is missing, none is there twice."""
    extensions = {line.rpartition(".")[2] for line in case.text.splitlines()}
    found = sorted(line.split(" ")[-1] for line in case.lines)
    assert found == sorted(extensions), "not one line for each extension"


def test_output_is_right(case: CheckCase) -> None:
    """Nothing is missing, wrong or too much."""
    assert case.output == expected(list(case.inputs)), "the output differs from the right one"
