"""Turns Python values into JSON that every reader accepts: no NaN, no lone surrogates, no unbounded sizes."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 50
"""Deeper values become their `repr`."""
MAX_ITEMS = 10_000
"""Items of one list or mapping that are kept."""


def clean_text(text: str) -> str:
    """Return the text with lone surrogates replaced, which UTF-8 cannot represent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def cut(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, with a note about the rest."""
    return text if len(text) <= limit else f"{text[:limit]}... (cut: {len(text)} characters)"


def safe_repr(value: object, limit: int = 2000) -> str:
    """Return the `repr` of a value, also of one whose `repr` raises."""
    try:
        return cut(clean_text(repr(value)), limit)
    except Exception:
        return f"<{type(value).__name__}>"


def scalar_of(value: object) -> object:
    """Return the Python value of a NumPy or torch scalar or array, and other values unchanged."""
    for name in ("item", "tolist"):
        convert = getattr(value, name, None)
        if callable(convert) and not isinstance(value, type):
            try:
                return convert()
            except Exception:  # noqa: S112 - an array with several elements has no item.
                continue
    return value


def to_json(value: object, depth: int = 0) -> Any:
    """Return the JSON value that is nearest to any Python value. What JSON cannot represent becomes its `repr`."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if depth >= MAX_DEPTH:
        return safe_repr(value)
    if isinstance(value, Mapping):
        items = list(value.items())
        found = {clean_text(str(key)): to_json(item, depth + 1) for key, item in items[:MAX_ITEMS]}
        if len(items) > MAX_ITEMS:
            found["..."] = f"cut: {len(items)} entries"
        return found
    if isinstance(value, (list, tuple, set, frozenset)):
        entries = list(value)
        listed = [to_json(item, depth + 1) for item in entries[:MAX_ITEMS]]
        return [*listed, f"... (cut: {len(entries)} entries)"] if len(entries) > MAX_ITEMS else listed
    if isinstance(value, (datetime.date, datetime.datetime, datetime.time)):
        return value.isoformat()
    plain = scalar_of(value)
    return safe_repr(value) if plain is value else to_json(plain, depth + 1)


def bounded_json(value: object, limit: int) -> Any:
    """Return a value as JSON of about `limit` characters at most; a longer one becomes a text that is cut."""
    found = to_json(value)
    if isinstance(found, str):
        return cut(found, limit)
    if found is None or isinstance(found, (bool, int, float)):
        return found
    text = dump(found)
    return found if len(text) <= limit else cut(text, limit)


def dump(value: object) -> str:
    """Return compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def canonical(value: object) -> str:
    """Return JSON in which the order of keys does not count."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
