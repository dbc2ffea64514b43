"""The key of a table that occurs most often."""

# ruff: noqa: S101 (checks assert)
from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tblite_container.judge import CheckCase


def expected(inputs: list[str]) -> str:
    """Return the right output."""
    counts = Counter(line.split(",")[0] for line in inputs[0].splitlines())
    return f"{counts.most_common(1)[0][0]}\n"


def test_output_is_one_key(case: CheckCase) -> None:
    """A name and nothing else."""
    keys = {line.split(",")[0] for line in case.text.splitlines()}
    assert len(case.lines) == 1, "the output is not one line"
    assert case.lines[0] in keys, "the output is not a key alone"


def test_output_is_right(case: CheckCase) -> None:
    """Nothing is missing, wrong or too much."""
    assert case.output == expected(list(case.inputs)), "the output differs from the right one"
