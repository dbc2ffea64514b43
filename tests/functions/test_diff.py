"""The difference of two texts, word by word."""

import time

import pytest

from synth_optimizers.diff import word_diff

LONG = "Ignore the rest. " * 20_000


@pytest.mark.parametrize(
    ("before", "after", "pieces"),
    [
        ("a b c", "a x c", [("same", "a "), ("removed", "b"), ("added", "x"), ("same", " c")]),
        ("", "x", [("added", "x")]),
        ("x", "x", [("same", "x")]),
        ("a a", "a", [("same", "a"), ("removed", " a")]),
        (LONG + "winner", LONG + "winner, free", [("same", LONG + "winner"), ("added", ", free")]),
        (LONG, f"First. {LONG}", [("added", "First. "), ("same", LONG)]),
    ],
)
def test_the_changed_words_are_named(before: str, after: str, pieces: list[tuple[str, str]]) -> None:
    assert word_diff(before, after) == pieces


def test_long_texts_that_differ_everywhere_are_compared_in_reasonable_time() -> None:
    before, after = LONG + "the end", "A new one. " + LONG.replace("rest", "last") + "!"
    begun = time.process_time()
    pieces = word_diff(before, after)
    # A comparison of all pairs takes many minutes.
    assert time.process_time() - begun < 30
    assert "".join(text for change, text in pieces if change != "added") == before
    assert "".join(text for change, text in pieces if change != "removed") == after
