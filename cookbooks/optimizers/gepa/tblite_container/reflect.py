"""The strategy of the offline reflector: finds pipelines for failed tasks and adds them as recipes.

It knows only the brief: instructions, their examples, and the outcomes of the parent's recipes. For a failed task it
looks for pipelines that reproduce the example, first among the existing recipes and then by search. The description of
a recipe consists of the significant words of the instruction. It sees neither hidden inputs nor held-out tasks.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from shared.brief import MERGE, Brief, Proposal, Row

from tblite_container import search
from tblite_container.jail import LIMITS
from tblite_container.policy import Recipe, plain, recipes
from tblite_container.sandbox import Sandbox
from tblite_container.search import Example

# The number of tasks searched per turn, which is slow; the others wait for the next turn.
MAX_SEARCHES = 6
MAX_PHRASES = 6
MAX_CLASSES = 6
_COMMON = """
    a all also an and any are as at be both but by do does else every for from has have how in is it its just left
    many must no not nothing of on one only or out so that the their them then there they things this to was we were
    what where which with without"""
COMMON = frozenset(_COMMON.split())

_one_at_a_time = threading.Lock()


def propose(brief: Brief) -> list[Proposal]:
    """Return prompts with recipes for the tasks that failed."""
    field = brief.components[0]
    if brief.operation == MERGE:
        prompts = [parent[field] for parent in brief.parents]
        return [Proposal({field: merged(prompts)}, "All recipes of both parents.")]
    with _one_at_a_time:
        fixes = [fix for row in brief.rows if (fix := Fix.of(row))]
        lost = [fix for fix in fixes if fix.is_lost]
        taught = Prompt(brief.parent[field])
        suspects = frozenset(one.pipeline for line in brief.tried for one in recipes(line))
        notes = taught.learn(lost, fixes, suspects - {one.pipeline for one in taught.known})
    proposals = [Proposal({field: taught.text(asking)}, " ".join(notes) or "Nothing was found.")]
    if brief.proposal_count > 1:
        proposals.append(Proposal({field: taught.text(whole)}, "The same, described by whole instructions."))
    return [one for one in proposals if one.fields[field] != brief.parent[field]]


class Fix:
    """A row of the evidence in a form to learn from."""

    def __init__(self, row: Row, example: Example) -> None:
        self.example = example
        self.is_lost = row.score is not None and row.score < 1.0
        self.used = str(row.details.get("pipeline") or "")
        # A pipeline that reproduces the example and still fails; it must not be added again for this task.
        self.unwanted = frozenset([self.used] if self.is_lost and row.details.get("example_passed") else [])

    @classmethod
    def of(cls, row: Row) -> Fix | None:
        """Convert a row, if it is shown completely."""
        shown, instruction = row.input.get("example"), row.input.get("instruction")
        if not isinstance(shown, dict) or not isinstance(instruction, str):
            return None
        return cls(row, Example(tuple(shown["input"].items()), shown["output"], instruction))


class Prompt:
    """A prompt under construction: its recipes, each with the instructions that it is for."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.known = recipes(prompt)
        self.learned: dict[str, list[str]] = {}
        self.dropped: set[str] = set()

    def learn(self, lost: Sequence[Fix], rows: Sequence[Fix], suspects: frozenset[str]) -> list[str]:
        """Find a pipeline for each failed task and return the changes, as sentences.

        `suspects` are pipelines of rejected candidates: alternatives are tried first.
        """
        notes = []
        searches = 0
        self.dropped = {fix.used for fix in lost if fix.unwanted} - {fix.used for fix in rows if not fix.is_lost}
        # A model may have written them, so they are not run under resource limits alone.
        known = [] if _sandbox().kind == LIMITS else [one.pipeline for one in self.known]
        for fix in lost:
            there = [one for one in known if one not in self.dropped] + list(self.learned)
            fitting = [one for one in _reproducing(there, fix.example) if one not in fix.unwanted]
            if not fitting and searches < MAX_SEARCHES:
                searches += 1
                fitting = most_general(_found(fix.example, refuted(fix, suspects) | self.dropped), rows)
            if fitting:
                self.learned.setdefault(fitting[0], []).append(fix.example.instruction)
                verb = "also serves" if fitting[0] in there else "was found for"
                notes.append(f"`{fitting[0]}` {verb} `{asking(fix.example.instruction)}`.")
        return notes

    def text(self, describe: Callable[[str], str]) -> str:
        """Return the prompt with the new recipes; `describe` turns an instruction into a phrase."""
        lines = []
        written = set()
        for line in self.prompt.splitlines():
            there = recipes(line)
            if not there:
                lines.append(line)
            elif there[0].pipeline not in self.dropped:
                phrases = [describe(one) for one in self.learned.get(there[0].pipeline, [])]
                written.add(there[0].pipeline)
                lines.append(_recipe([*there[0].phrases, *phrases], there[0].pipeline) if phrases else line)
        fresh = [(pipeline, instructions) for pipeline, instructions in self.learned.items() if pipeline not in written]
        lines += [_recipe([describe(one) for one in instructions], pipeline) for pipeline, instructions in fresh]
        return "\n".join(lines)


def merged(prompts: Sequence[str]) -> str:
    """Return the first prompt with the recipes of the others; equal pipelines share their phrases."""
    first, *others = prompts
    theirs = [one for prompt in others for one in recipes(prompt)]
    lines = []
    for line in first.splitlines():
        there = recipes(line)
        more = [phrase for one in theirs if there and one.pipeline == there[0].pipeline for phrase in one.phrases]
        lines.append(_recipe([*there[0].phrases, *more], there[0].pipeline) if there else line)
    known = {one.pipeline for one in recipes(first)}
    lines += [one.line() for one in theirs if one.pipeline not in known]
    return "\n".join(dict.fromkeys(lines))


def refuted(fix: Fix, suspects: frozenset[str]) -> frozenset[str]:
    """Return the pipelines that are known to fail a task: those that failed, and those that were found with them."""
    passed: frozenset[str] = frozenset()
    for _ in range(MAX_CLASSES):
        found = frozenset(_found(fix.example, passed))
        if not found & (fix.unwanted | suspects):
            break
        passed |= found
    return passed | fix.unwanted


def most_general(found: Sequence[str], rows: Sequence[Fix]) -> list[str]:
    """Return pipelines ordered by how many examples of the evidence they reproduce; ties keep their order."""
    if len(found) < 2:
        return list(found)
    counts = dict.fromkeys(found, 0)
    for fix in rows:
        for one in _reproducing(found, fix.example):
            counts[one] += 1
    return sorted(found, key=lambda one: -counts[one])


def asking(instruction: str) -> str:
    """Return the significant words of an instruction, without sentences that name a file: these describe the data."""
    sentences = re.split(r"(?<=[.?!])\s+", instruction)
    rest = [sentence for sentence in sentences if plain(sentence) == _lower(sentence)]
    return whole(" ".join(rest or sentences))


def whole(instruction: str) -> str:
    """Return the significant words of an instruction, each once, so that a recipe fits its kind of task."""
    words = [word for word in re.findall(r"[a-z]+|#", plain(instruction)) if word not in COMMON]
    return ", ".join(dict.fromkeys(words))


def _lower(text: str) -> str:
    return re.sub(r"\s+", " ", text.lower()).strip(" .,:")


def _recipe(phrases: Sequence[str], pipeline: str) -> str:
    return Recipe(tuple(list(dict.fromkeys(phrases))[:MAX_PHRASES]), pipeline).line()


@cache
def _sandbox() -> Sandbox:
    return Sandbox(with_checks=False)


@cache
def _found(example: Example, unwanted: frozenset[str]) -> tuple[str, ...]:
    return tuple(search.pipelines(_sandbox(), example, unwanted))


def _reproducing(candidates: Sequence[str], example: Example) -> list[str]:
    fresh = [one for one in dict.fromkeys(candidates) if (one, example) not in _seen]
    if fresh:
        right = search.reproducing(_sandbox(), fresh, example)
        _seen.update({(one, example): one in right for one in fresh})
    return [one for one in dict.fromkeys(candidates) if _seen[one, example]]


_seen: dict[tuple[str, Example], bool] = {}
