"""Reads a prompt as a review checklist, and matches its lines to the documented rules of the linter by embedding."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from shared.embeddings import embedding_model

from code_review_container.linter import Rule, rules

Vectors: TypeAlias = np.ndarray[Any, Any]

# How similar a line and a rule must be, and how many rules one line reaches at most.
SIMILAR = 0.4
RULES_PER_LINE = 3
# A rule that is this much less similar than the nearest one is about something else.
NEAR = 0.8

_BULLET = re.compile(r"^\s*(?:[-*+•]|\d+[.)])?\s*")
_NOT = re.compile(
    r"^(?:please )?(?:(?:do not|don't|never) (?:report|flag|mention|comment on|complain about|look for)|ignore|skip)\b",
    re.IGNORECASE,
)
_DO = re.compile(r"^(?:please )?(?:flag|report|find|look for|check for|watch for|point out)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Line:
    """A line of the checklist: what it is about, and whether it asks for reports or forbids them."""

    text: str
    subject: str
    forbids: bool


def read_lines(prompt: str) -> list[Line]:
    """Return the lines of a prompt that say something."""
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
    """Return the codes of the rules that a prompt switches on, each with the line that does it.

    A rule that several lines reach follows the one that is most similar to it.
    """
    lines = read_lines(prompt)
    if not lines:
        return {}
    known, documented = _documented()
    asked = _unit(embedding_model().embed([line.subject for line in lines]))
    reached = _reached(_distinct(asked) @ _distinct(documented).T)
    nearest = reached.argmax(axis=0)
    switched = [
        (rule.code, lines[place])
        for rule, place, best in zip(known, nearest, reached.max(axis=0), strict=True)
        if best > 0
    ]
    return {code: line.text for code, line in switched if not line.forbids}


def _reached(similarity: Vectors) -> Vectors:
    """Return the similarities of those rules that each line is about, and 0 for all others."""
    ranked = -np.sort(-similarity, axis=1)
    least = np.maximum(ranked[:, RULES_PER_LINE - 1], np.maximum(ranked[:, 0] * NEAR, SIMILAR))
    kept: Vectors = np.where(similarity >= least[:, None], similarity, 0.0)
    return kept


@lru_cache(maxsize=1)
def _documented() -> tuple[tuple[Rule, ...], Vectors]:
    """Return the rules, and their embeddings as the model gives them."""
    return rules(), _unit(embedding_model().embed([_plain(". ".join(rule.texts)) for rule in rules()]))


def _distinct(vectors: Vectors) -> Vectors:
    """Return the directions in which texts differ from what all rules have in common."""
    _, documented = _documented()
    return _unit(vectors - documented.mean(axis=0))


def _unit(vectors: Vectors) -> Vectors:
    scaled: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return scaled


def _plain(text: str) -> str:
    return re.sub(r"[`*_]", " ", text.lower()).strip(" .:")
