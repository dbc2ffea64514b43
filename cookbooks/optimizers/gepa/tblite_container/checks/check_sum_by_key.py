"""The sum of the numbers of each key of a table, by key."""

# ruff: noqa: S101 (checks assert)
from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tblite_container.judge import CheckCase


def expected(inputs: list[str]) -> str:
    """Return the right output."""
    sums: Counter[str] = Counter()
    for line in inputs[0].splitlines():
        key, number = line.split(",")
        sums[key] += int(number)
    return "".join(f"{key} {total}\n" for key, total in sorted(sums.items()))


def test_there_is_one_line_for_each_key_in_order(case: CheckCase) -> None:
    """No key is missing, none is there twice, and they are sorted."""
    keys = {line.split(",")[0] for line in case.text.splitlines()}
    assert [line.split(" ")[0] for line in case.lines] == sorted(keys), "not one line for each key, in order"


def test_sums_add_up_to_the_whole(case: CheckCase) -> None:
    """Every number is counted once."""
    whole = sum(int(line.split(",")[1]) for line in case.text.splitlines())
    numbers = [line.split(" ")[-1] for line in case.lines]
    assert all(number.isdigit() for number in numbers), "a line does not end with a sum"
    assert sum(map(int, numbers)) == whole, "the sums do not add up to the whole"


def test_output_is_right(case: CheckCase) -> None:
    """Nothing is missing, wrong or too much."""
    assert case.output == expected(list(case.inputs)), "the output differs from the right one"
