"""Parses and formats the examples of a prompt: paragraphs of two lines, `Query: ...` and `Intent: ...`."""

from __future__ import annotations

import re

Example = tuple[str, str]
"""A query and its intent."""

_PARAGRAPH = re.compile(r"^Query: (.+)\nIntent: (\S+)$")


def read(prompt: str) -> tuple[str, list[Example]]:
    """Return the text of a prompt without its examples, and the examples in order."""
    rest, found = [], []
    for paragraph in prompt.split("\n\n"):
        match = _PARAGRAPH.match(paragraph.strip())
        if match:
            found.append((match[1], match[2]))
        else:
            rest.append(paragraph)
    return "\n\n".join(rest), found


def with_examples(text: str, examples: list[Example]) -> str:
    """Return a text followed by examples."""
    return "\n\n".join([text, *(f"Query: {query}\nIntent: {intent}" for query, intent in examples)])
