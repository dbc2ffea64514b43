"""The offline policy: follows the recipe of the prompt whose description is nearest to the instruction.

A recipe is a line `- description: pipeline`, such as `- count lines per user: cut -d, -f1 {input} | sort | uniq -c`.
A description may hold several phrases, parted by semicolons. Nearness is measured with static word embeddings, so the
choice depends on the prompt and on the instruction and on nothing else. The policy knows no pipeline of its own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy
from shared.embeddings import embedding_model

PLACE = "{input}"
# A recipe less near than this says nothing about the task.
NEAR_ENOUGH = 0.3


@dataclass(frozen=True)
class Recipe:
    """A line of the prompt: for what, and how."""

    phrases: tuple[str, ...]
    pipeline: str

    def line(self) -> str:
        """Return the recipe as the prompt has it."""
        return f"- {'; '.join(self.phrases)}: {self.pipeline}"


@dataclass(frozen=True)
class Choice:
    """The recipe that a task is solved with, and how near each recipe was, in the order of the prompt."""

    recipe: Recipe | None
    nearness: tuple[float, ...]


def recipes(prompt: str) -> list[Recipe]:
    """Return the recipes of a prompt. Other lines are for people."""
    found = []
    for line in prompt.splitlines():
        match = re.match(r"\s*[-*]\s+([^:]+):\s+(\S.*)$", line)
        if match and PLACE in match[2]:
            phrases = tuple(phrase.strip() for phrase in match[1].split(";") if phrase.strip())
            found.append(Recipe(phrases, match[2].strip().strip("`")))
    return found


def choose(prompt: str, instruction: str) -> Choice:
    """Return the recipe with the phrase nearest to the instruction; the first one of equals."""
    given = recipes(prompt)
    if not given:
        return Choice(None, ())
    wanted = _embedded(plain(instruction))
    nearness = tuple(max(round(float(_embedded(plain(text)) @ wanted), 4) for text in one.phrases) for one in given)
    best = max(range(len(given)), key=lambda place: (nearness[place], -place))
    return Choice(given[best] if nearness[best] >= NEAR_ENOUGH else None, nearness)


def script(pipeline: str, files: Sequence[str]) -> str:
    """Return a pipeline with the names of the input files in their place."""
    return pipeline.replace(PLACE, " ".join(shlex.quote(name) for name in files))


def plain(text: str) -> str:
    """Return a text in lower case and without names of files: they say nothing about what is to be done."""
    return re.sub(r"\s+", " ", re.sub(r"\b[\w-]+\.[a-z]\w*\b", " ", text.lower())).strip(" .,:")


@lru_cache(maxsize=4096)
def _embedded(text: str) -> Any:  # noqa: ANN401 (an array)
    vector = numpy.asarray(embedding_model().embed([text], norm=True))[0]
    return vector if numpy.isfinite(vector).all() else numpy.zeros_like(vector)
