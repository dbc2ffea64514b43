"""Parses and formats the guidance lines of a prompt: `- intent: phrase; phrase`."""

from __future__ import annotations

import re

Guidance = dict[str, list[str]]

_LINE = re.compile(r"\s*[-*]\s+[`*]*([\w?]+)[`*]*\s*(?::[`*]*(.*))?$")


def read(prompt: str) -> Guidance:
    """Return the phrases of each intent that a prompt lists, in order. An intent may have none."""
    found: Guidance = {}
    for line in prompt.splitlines():
        match = _LINE.match(line)
        if match:
            phrases = (phrase.strip() for phrase in (match[2] or "").split(";"))
            found.setdefault(match[1], []).extend(phrase for phrase in phrases if phrase)
    return found


def with_guidance(prompt: str, guidance: Guidance) -> str:
    """Return a prompt with other guidance; all other text is unchanged and comes first."""
    rest = [line for line in prompt.splitlines() if not _LINE.match(line)]
    lines = [f"- {intent}: {'; '.join(phrases)}" if phrases else f"- {intent}" for intent, phrases in guidance.items()]
    return "\n".join([*rest, *lines])


def as_phrase(text: str) -> str:
    """Return a text as one phrase, without phrase separators."""
    return " ".join(text.replace(";", ",").split())
