"""The error of the bridge: a stable code, what is wrong with which value where, and what to do."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


class BridgeError(Exception):
    """A problem that the user can fix."""

    def __init__(self, code: str, message: str, hint: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        return f"error[{self.code}]: {self.message}\nhint: {self.hint}"

    def document(self) -> dict[str, Any]:
        """Return the error as the JSON document of `describe`."""
        return {"error": {"code": self.code, "message": self.message, "detail": self.detail, "hint": self.hint}}


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like a word, if one is."""
    names = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(word.casefold(), list(names), n=1)
    return names[found[0]] if found else None


def suggestion(word: str, known: Iterable[str], kind: str) -> str:
    """Return the sentence "Did you mean ...?", or one that lists the known names."""
    names = list(known)
    near = nearest(word, names)
    if near is not None:
        return f"Did you mean {near!r}?"
    return f"{kind}: {', '.join(names)}." if names else f"There are no {kind.lower()}."
