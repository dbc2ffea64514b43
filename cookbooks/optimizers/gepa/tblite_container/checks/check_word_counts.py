"""How often each word of a text occurs, frequent words first."""

# ruff: noqa: S101 (checks assert)
from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tblite_container.judge import CheckCase


def expected(inputs: list[str]) -> str:
    """Return the right output."""
    counts = Counter(re.findall("[a-z]+", inputs[0].lower()))
    return "".join(f"{count} {word}\n" for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def test_words_are_those_of_the_text(case: CheckCase) -> None:
    """Lower case, without punctuation, each once."""
    words = set(re.findall("[a-z]+", case.text.lower()))
    assert sorted(line.split(" ")[-1] for line in case.lines) == sorted(words), "not one line for each word"


def test_frequent_words_come_first(case: CheckCase) -> None:
    """Counts do not grow from line to line."""
    counts = [line.strip().split(" ")[0] for line in case.lines]
    assert all(count.isdigit() for count in counts), "a line does not begin with a count"
    assert [*map(int, counts)] == sorted(map(int, counts), reverse=True), "frequent words do not come first"


def test_output_is_right(case: CheckCase) -> None:
    """Nothing is missing, wrong or too much."""
    assert case.output == expected(list(case.inputs)), "the output differs from the right one"
