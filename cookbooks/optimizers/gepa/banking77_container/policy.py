"""The offline policy: a small embedding model reads the guidance of the prompt and classifies a query by it.

It knows no intent by itself. An intent that the prompt does not list is never its answer, and text of the prompt that
is no guidance does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from shared.embeddings import embedding_model

from banking77_container.guidance import read

# What all phrases of an intent say together counts, and so does the one that is nearest.
TOGETHER, NEAREST = 0.6, 0.4
UNKNOWN = "unknown"

Vector = Any


@dataclass(frozen=True)
class Match:
    """How similar an intent is to a query, and which of its phrases is nearest. The intent's name is a phrase too."""

    intent: str
    similarity: float
    nearest: str


@dataclass(frozen=True)
class Answer:
    """The intents in the order of their similarity."""

    matches: tuple[Match, ...]

    @property
    def intent(self) -> str:
        """The intent that is answered."""
        return self.matches[0].intent if self.matches else UNKNOWN

    def match(self, intent: str) -> Match | None:
        """Return how an intent did, if the prompt lists it."""
        return next((match for match in self.matches if match.intent == intent), None)


def classify(prompt: str, intents: tuple[str, ...], query: str) -> Answer:
    """Order the intents that a prompt lists by how similar their names and phrases are to a query."""
    listed = _listed(prompt, intents)
    if listed is None:
        return Answer(())
    vector = _embed(query)
    similarities = listed.vectors @ vector
    nearest_ones = np.maximum.reduceat(similarities, listed.starts)
    # Rounded, so that the last bit of a sum decides nothing; of equal ones the first of the prompt wins.
    scores = np.round(TOGETHER * (listed.middles @ vector) + NEAREST * nearest_ones, 4)
    matches = []
    for place in np.argsort(-scores, kind="stable"):
        start, end = int(listed.starts[place]), int(listed.ends[place])
        nearest = start + int(np.argmax(similarities[start:end]))
        matches.append(Match(listed.intents[place], round(float(scores[place]), 4), listed.phrases[nearest]))
    return Answer(tuple(matches))


@dataclass(frozen=True)
class _Listed:
    """The phrases of all intents of a prompt, one after the other, and the middle of those of each intent."""

    intents: list[str]
    phrases: list[str]
    starts: Vector
    ends: Vector
    vectors: Vector
    middles: Vector


@lru_cache(maxsize=64)
def _listed(prompt: str, intents: tuple[str, ...]) -> _Listed | None:
    known = frozenset(intents)
    groups = {
        intent: [intent.replace("_", " "), *dict.fromkeys(phrases)]
        for intent, phrases in read(prompt).items()
        if intent in known
    }
    if not groups:
        return None
    phrases = [phrase for group in groups.values() for phrase in group]
    ends = np.cumsum([len(group) for group in groups.values()])
    starts = np.concatenate(([0], ends[:-1]))
    vectors = np.vstack([_embed(phrase) for phrase in phrases])
    middles = np.add.reduceat(vectors, starts)
    middles /= np.linalg.norm(middles, axis=1, keepdims=True)
    return _Listed(list(groups), phrases, starts, ends, vectors, middles)


@lru_cache(maxsize=50_000)
def _embed(text: str) -> Vector:
    return embedding_model().embed([text.lower()], norm=True)[0]
