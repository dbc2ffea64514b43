"""Shows texts of models and containers without the characters that control a terminal or that a reader cannot see."""

import re

_HIDDEN = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 except tab and line break, DEL, and C1: escape sequences begin with one of these
    "\xad\u034f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"
    "]"
)
"""Control characters, and characters without a width: zero-width characters, bidirectional marks, tags."""


def visible_text(text: str) -> str:
    """Return a text with the replacement character for every control, bidirectional and zero-width character."""
    return _HIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
