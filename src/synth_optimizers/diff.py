"""What changed between two texts, word by word."""

import re
from difflib import SequenceMatcher
from typing import Literal

Change = Literal["same", "removed", "added"]

_PIECES = re.compile(r"\s+|\w+|[^\w\s]")


def word_diff(before: str, after: str) -> list[tuple[Change, str]]:
    """Return the pieces of both texts in order: `before` is all but those `added`, `after` all but those `removed`."""
    old, new = _PIECES.findall(before), _PIECES.findall(after)
    pieces: list[tuple[Change, str]] = []

    def put(change: Change, words: list[str]) -> None:
        if words:
            pieces.append((change, "".join(words)))

    for tag, old_from, old_to, new_from, new_to in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if tag == "equal":
            put("same", old[old_from:old_to])
        else:
            put("removed", old[old_from:old_to])
            put("added", new[new_from:new_to])
    return pieces
