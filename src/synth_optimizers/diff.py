"""Word-by-word difference of two texts."""

import re
from difflib import SequenceMatcher
from typing import Literal

Change = Literal["same", "removed", "added"]

_PIECES = re.compile(r"\s+|\w+|[^\w\s]")


def word_diff(before: str, after: str) -> list[tuple[Change, str]]:
    """Return the pieces of both texts in order.

    The pieces that are not `added` make up `before`; those that are not `removed` make up `after`.
    """
    old, new = _PIECES.findall(before), _PIECES.findall(after)
    pieces: list[tuple[Change, str]] = []
    for tag, old_from, old_to, new_from, new_to in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        before, after = "".join(old[old_from:old_to]), "".join(new[new_from:new_to])
        pieces += [("same", before)] if tag == "equal" else [("removed", before), ("added", after)]
    return [(change, text) for change, text in pieces if text]
