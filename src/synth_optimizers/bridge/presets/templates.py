"""The part of Nunjucks that promptfoo's prompts need: `{{variable}}`, also with dots and indexes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import BridgeError
from ..values import dump, to_json

VARIABLE = re.compile(r"\{\{-?\s*([A-Za-z_]\w*(?:\.\w+|\[\d+\])*)\s*-?\}\}")
OPENING = re.compile(r"\{\{|\{%|\{#")


def check_template(text: str, place: str) -> list[str]:
    """Return the names of a template's variables, once each. Raises for everything but variables."""
    for found in OPENING.finditer(text):
        if VARIABLE.match(text, found.start()) is None:
            line = text.count("\n", 0, found.start()) + 1
            shown = text[found.start() : found.start() + 40].splitlines()[0]
            raise BridgeError(
                "template_unsupported",
                f"{place}, line {line}: {shown!r} is not a variable",
                "Only {{variable}} and {{variable.key}} can be filled in; write out filters, loops and conditions.",
            )
    return variables(text)


def variables(text: str) -> list[str]:
    """Return the names of a template's variables, without what follows a dot."""
    return list(dict.fromkeys(re.split(r"[.\[]", name)[0] for name in VARIABLE.findall(text)))


def render(text: str, values: Mapping[str, Any], *, keep_unknown: bool = False) -> str:
    """Fill in the variables. An unknown one becomes empty, as in promptfoo; everything else stays as it is."""

    def fill(found: re.Match[str]) -> str:
        known, value = _look_up(found[1], values)
        return shown(value) if known else found[0] if keep_unknown else ""

    return VARIABLE.sub(fill, text)


def render_all(value: Any, values: Mapping[str, Any], *, keep_unknown: bool = False) -> Any:
    """Fill in the variables of all texts of a value."""
    if isinstance(value, str):
        return render(value, values, keep_unknown=keep_unknown)
    if isinstance(value, list):
        return [render_all(item, values, keep_unknown=keep_unknown) for item in value]
    if isinstance(value, Mapping):
        return {key: render_all(item, values, keep_unknown=keep_unknown) for key, item in value.items()}
    return value


def shown(value: Any) -> str:
    """Return a value as text: objects and lists as JSON, and booleans as JavaScript writes them."""
    if isinstance(value, str):
        return value
    return "" if value is None else dump(to_json(value))


def _look_up(path: str, values: Mapping[str, Any]) -> tuple[bool, Any]:
    found: Any = values
    for part in re.findall(r"\w+", path):
        if isinstance(found, Mapping) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isdigit() and int(part) < len(found):
            found = found[int(part)]
        else:
            return False, None
    return True, found
