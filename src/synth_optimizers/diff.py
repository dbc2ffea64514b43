"""Word-by-word difference of two texts."""

import re
from difflib import SequenceMatcher
from typing import Literal

Change = Literal["same", "removed", "added"]

_MAX_PAIRS = 10_000_000
"""Above this number of pairs, words that occur often do not begin a match."""

_PIECES = re.compile(r"\s+|\w+|[^\w\s]")


def word_diff(before: str, after: str) -> list[tuple[Change, str]]:
    """Return the pieces of both texts in order.

    The pieces that are not `added` make up `before`; those that are not `removed` make up `after`.
    """
    old, new = _PIECES.findall(before), _PIECES.findall(after)
    # A proposal keeps most of a long text, and the comparison takes time that grows with the square of the length.
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    first, last = "".join(old[:start]), "".join(old[len(old) - end :])
    old, new = old[start : len(old) - end], new[start : len(new) - end]
    matcher = SequenceMatcher(a=old, b=new, autojunk=len(old) * len(new) > _MAX_PAIRS)
    pieces: list[tuple[Change, str]] = [("same", first)]
    for tag, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        before, after = "".join(old[old_from:old_to]), "".join(new[new_from:new_to])
        pieces += [("same", before)] if tag == "equal" else [("removed", before), ("added", after)]
    return [(change, text) for change, text in [*pieces, ("same", last)] if text]


def _common(left: list[str], right: list[str]) -> int:
    """Return the number of pieces at the beginning that are the same."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(left), len(right)))
