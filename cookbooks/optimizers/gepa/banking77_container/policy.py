"""The offline policy: an embedding model classifies a query by the guidance of the prompt.

It has no knowledge of intents. It never answers an intent that the prompt does not list, and ignores text of the prompt
that is not guidance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from shared.embeddings import embedding_model

from banking77_container.guidance import read

# The weights of the mean of an intent's phrases and of its nearest phrase.
TOGETHER, NEAREST = 0.6, 0.4
UNKNOWN = "unknown"

Vector = Any


@dataclass(frozen=True)
class Match:
    """The similarity of an intent to a query, and its nearest phrase. The intent's name counts as a phrase."""

    intent: str
    similarity: float
    nearest: str


@dataclass(frozen=True)
class Answer:
    """The intents in the order of their similarity."""

    matches: tuple[Match, ...]

    @property
    def intent(self) -> str:
        """The most similar intent."""
        return self.matches[0].intent if self.matches else UNKNOWN

    def match(self, intent: str) -> Match | None:
        """Return the match of an intent, if the prompt lists it."""
        return next((match for match in self.matches if match.intent == intent), None)


def classify(prompt: str, intents: tuple[str, ...], query: str) -> Answer:
    """Rank the intents that a prompt lists by the similarity of their names and phrases to a query."""
    listed = _phrase_index(prompt, intents)
    if listed is None:
        return Answer(())
    vector = _embed(query)
    similarities = listed.vectors @ vector
    nearest_ones = np.maximum.reduceat(similarities, listed.starts)
    # Rounded, so that floating-point noise decides nothing; ties go to the first in the prompt.
    scores = np.round(TOGETHER * (listed.middles @ vector) + NEAREST * nearest_ones, 4)
    matches = []
    for place in np.argsort(-scores, kind="stable"):
        start, end = int(listed.starts[place]), int(listed.ends[place])
        nearest = start + int(np.argmax(similarities[start:end]))
        matches.append(Match(listed.intents[place], round(float(scores[place]), 4), listed.phrases[nearest]))
    return Answer(tuple(matches))


@dataclass(frozen=True)
class _PhraseIndex:
    """The phrases of all intents of a prompt in sequence, and the mean vector of each intent."""

    intents: list[str]
    phrases: list[str]
    starts: Vector
    ends: Vector
    vectors: Vector
    middles: Vector


@lru_cache(maxsize=64)
def _phrase_index(prompt: str, intents: tuple[str, ...]) -> _PhraseIndex | None:
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
    return _PhraseIndex(list(groups), phrases, starts, ends, vectors, middles)


@lru_cache(maxsize=50_000)
def _embed(text: str) -> Vector:
    return embedding_model().embed([text.lower()], norm=True)[0]
