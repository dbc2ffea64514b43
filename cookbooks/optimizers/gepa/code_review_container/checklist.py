"""Parses a prompt as a review checklist, and matches its lines to the linter's documented rules by embedding."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from shared.embeddings import embedding_model

from code_review_container.linter import Rule, rules

Vectors: TypeAlias = np.ndarray[Any, Any]

# The minimum similarity of a line and a rule, and the maximum number of rules per line.
SIMILAR = 0.4
RULES_PER_LINE = 3
# A rule that is less similar than the nearest one by this margin is about something else.
NEAR = 0.8

_BULLET = re.compile(r"^\s*(?:[-*+•]|\d+[.)])?\s*")
_NOT = re.compile(
    r"^(?:please )?(?:(?:do not|don't|never) (?:report|flag|mention|comment on|complain about|look for)|ignore|skip)\b",
    re.IGNORECASE,
)
_DO = re.compile(r"^(?:please )?(?:flag|report|find|look for|check for|watch for|point out)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Line:
    """A line of the checklist: its subject, and whether it requests or forbids reports."""

    text: str
    subject: str
    forbids: bool


def read_lines(prompt: str) -> list[Line]:
    """Return the lines of a prompt that have content."""
    lines = []
    for raw in prompt.splitlines():
        text = _BULLET.sub("", raw).strip()
        forbids = _NOT.match(text)
        subject = _plain(text[forbids.end() :] if forbids else _DO.sub("", text))
        if subject:
            lines.append(Line(text, subject, forbids is not None))
    return lines


@lru_cache(maxsize=4096)
def rules_of(prompt: str) -> dict[str, str]:
    """Return the codes of the rules that a prompt enables, each with the line that enables it.

    If several lines match a rule, the most similar one decides.
    """
    lines = read_lines(prompt)
    if not lines:
        return {}
    known, documented = _rule_embeddings()
    asked = _unit(embedding_model().embed([line.subject for line in lines]))
    reached = _matched_similarity(_distinct(asked) @ _distinct(documented).T)
    nearest = reached.argmax(axis=0)
    switched = [
        (rule.code, lines[place])
        for rule, place, best in zip(known, nearest, reached.max(axis=0), strict=True)
        if best > 0
    ]
    return {code: line.text for code, line in switched if not line.forbids}


def _matched_similarity(similarity: Vectors) -> Vectors:
    """Return the similarities of the rules that each line matches, and 0 for all others."""
    ranked = -np.sort(-similarity, axis=1)
    least = np.maximum(ranked[:, RULES_PER_LINE - 1], np.maximum(ranked[:, 0] * NEAR, SIMILAR))
    kept: Vectors = np.where(similarity >= least[:, None], similarity, 0.0)
    return kept


@lru_cache(maxsize=1)
def _rule_embeddings() -> tuple[tuple[Rule, ...], Vectors]:
    """Return the rules and their raw embeddings."""
    return rules(), _unit(embedding_model().embed([_plain(". ".join(rule.texts)) for rule in rules()]))


def _distinct(vectors: Vectors) -> Vectors:
    """Return normalized embeddings without the component that all rules share."""
    _, documented = _rule_embeddings()
    return _unit(vectors - documented.mean(axis=0))


def _unit(vectors: Vectors) -> Vectors:
    scaled: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return scaled


def _plain(text: str) -> str:
    return re.sub(r"[`*_]", " ", text.lower()).strip(" .:")
