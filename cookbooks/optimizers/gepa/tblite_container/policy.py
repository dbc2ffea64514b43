"""The offline policy: it follows the recipe of the prompt whose description is nearest to the instruction.

A recipe is a line `- description: pipeline`, such as `- count lines per user: cut -d, -f1 {input} | sort | uniq -c`. A
description may have several phrases, separated by semicolons. Distance is measured with static word embeddings, so the
choice depends only on the prompt and the instruction. The policy has no pipelines of its own.
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
# A recipe with a lower similarity does not apply to the task.
NEAR_ENOUGH = 0.3


@dataclass(frozen=True)
class Recipe:
    """A line of the prompt: a description and a pipeline."""

    phrases: tuple[str, ...]
    pipeline: str

    def line(self) -> str:
        """Return the recipe as a line of the prompt."""
        return f"- {'; '.join(self.phrases)}: {self.pipeline}"


@dataclass(frozen=True)
class Choice:
    """The chosen recipe, and the similarity of each recipe in the order of the prompt."""

    recipe: Recipe | None
    nearness: tuple[float, ...]


def recipes(prompt: str) -> list[Recipe]:
    """Parse the recipes of a prompt. Other lines are ignored."""
    found = []
    for line in prompt.splitlines():
        match = re.match(r"\s*[-*]\s+([^:]+):\s+(\S.*)$", line)
        if match and PLACE in match[2]:
            phrases = tuple(phrase.strip() for phrase in match[1].split(";") if phrase.strip())
            found.append(Recipe(phrases, match[2].strip().strip("`")))
    return found


def choose(prompt: str, instruction: str) -> Choice:
    """Return the recipe with the phrase nearest to the instruction; ties go to the first."""
    given = recipes(prompt)
    if not given:
        return Choice(None, ())
    wanted = _embedded(plain(instruction))
    nearness = tuple(max(round(float(_embedded(plain(text)) @ wanted), 4) for text in one.phrases) for one in given)
    best = max(range(len(given)), key=lambda place: (nearness[place], -place))
    return Choice(given[best] if nearness[best] >= NEAR_ENOUGH else None, nearness)


def script(pipeline: str, files: Sequence[str]) -> str:
    """Return a pipeline with the names of the input files filled in."""
    return pipeline.replace(PLACE, " ".join(shlex.quote(name) for name in files))


def plain(text: str) -> str:
    """Return a text in lower case and without file names, which say nothing about the task."""
    return re.sub(r"\s+", " ", re.sub(r"\b[\w-]+\.[a-z]\w*\b", " ", text.lower())).strip(" .,:")


@lru_cache(maxsize=4096)
def _embedded(text: str) -> Any:  # noqa: ANN401 (an array)
    vector = numpy.asarray(embedding_model().embed([text], norm=True))[0]
    return vector if numpy.isfinite(vector).all() else numpy.zeros_like(vector)
