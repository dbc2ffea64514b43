"""Parses the brief that the optimizer sends to the model of its proposer.

The brief is one text: a question, and files such as `parent.md` and `evidence.md`. A reflector sees only this text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Json = dict[str, Any]

MUTATE = "mutate"
MERGE = "merge"


@dataclass(frozen=True)
class Row:
    """One row of the evidence: the input of the parent, and the outcome.

    `score` is `None` if the rollout has none. `details` holds the keys of `actionable_side_info` besides the feedback.
    `details`, `input` and `record` are empty if they were too long to be shown: `max_evidence_kb` of the config limits
    all rows together. `record` holds what no other part of the row shows.
    """

    row_id: str
    input: Json = field(default_factory=dict)
    score: float | None = None
    feedback: list[str] = field(default_factory=list)
    details: Json = field(default_factory=dict)
    record: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Attempt:
    """A rejected candidate, the reason, and the lines in which it differs from the parent."""

    candidate_id: str
    reason: str
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Brief:
    """The question and the files of a brief.

    A `merge` has two parents, their ancestor, and in `base` the texts on which the proposal is based. Otherwise `base`
    is the parent.
    """

    components: list[str]
    parents: list[dict[str, str]]
    parent_ids: list[str] = field(default_factory=list)
    operation: str = MUTATE
    proposal_count: int = 1
    rows: list[Row] = field(default_factory=list)
    ancestor: dict[str, str] = field(default_factory=dict)
    base: dict[str, str] = field(default_factory=dict)
    rejected: list[Attempt] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def parent(self) -> dict[str, str]:
        """The texts of the first parent, by field."""
        return self.parents[0]

    @cached_property
    def tried(self) -> frozenset[str]:
        """All lines that rejected candidates added."""
        return frozenset(line for attempt in self.rejected for line in attempt.added)


@dataclass(frozen=True)
class Proposal:
    """The full new text of each changed field, and the idea behind it in a sentence."""

    fields: dict[str, str]
    rationale: str


def proposals(field: str, parent: str, ideas: Iterable[tuple[str, str]]) -> list[Proposal]:
    """Return a proposal for each idea whose prompt differs from the parent and from earlier ideas."""
    found: dict[str, str] = {}
    for idea, prompt in ideas:
        if prompt != parent:
            found.setdefault(prompt, idea)
    return [Proposal({field: prompt}, idea) for prompt, idea in found.items()]


class NoBriefError(ValueError):
    """The text contains no brief."""


def find_brief_text(body: Mapping[str, Any]) -> str:
    """Return the newest message that contains a brief, from the body of a chat completion or of a response.

    A conversation also contains earlier questions, and a coding agent adds its own messages.
    """
    given = body.get("messages") or body.get("input") or ""
    messages = given if isinstance(given, list) else [{"role": "user", "content": given}]
    texts = [_text_of(message.get("content")) for message in messages if isinstance(message, dict)]
    briefs = [text for text in texts if '<file name="parent.md">' in text]
    if not briefs:
        raise NoBriefError(
            'no message holds a brief with its files; with a codex proposer, set `answer = "structured"` in [proposer]'
        )
    return briefs[-1]


def read_brief(text: str) -> Brief:
    """Parse a brief from the text that contains it."""
    question = text.partition("<file name=")[0]
    files = dict(re.findall(r'<file name="([^"]+)">\n(.*?)\n</file>(?:\n|$)', text, flags=re.DOTALL))
    sections = _sections(files.get("parent.md", ""))
    parents = [(title, texts) for title, texts in sections if title.startswith("Parent")]
    if not parents or not parents[0][1]:
        raise NoBriefError("parent.md holds no text of a parent")
    ancestor = next((texts for title, texts in sections if title.startswith("Their common ancestor")), {})
    base = next((texts for title, texts in sections if title.startswith("What the proposal is laid over")), {})
    is_merge = len(parents) > 1 or bool(base)
    asked = re.search(r"Write (\d+) proposals?", question)
    named = re.search(r"in these fields(?: only)?: ((?:`[^`]+`(?:, )?)+)", question)
    return Brief(
        components=re.findall(r"`([^`]+)`", named[1]) if named else list(parents[0][1]),
        parents=[texts for _, texts in parents],
        parent_ids=[title.partition(": ")[2] for title, _ in parents],
        operation=MERGE if is_merge else MUTATE,
        proposal_count=int(asked[1]) if asked else 1,
        rows=_rows(files.get("evidence.md", "")),
        ancestor=ancestor,
        base=base or parents[0][1],
        rejected=_attempts(files.get("rejected.md", "")),
        problems=re.findall(r"^- (.+)$", files.get("repair.md", "").partition("# What it proposed")[0], re.MULTILINE),
    )


def _text_of(content: object) -> str:
    """Return the text of a message's content: a string, or a list of parts with text."""
    if isinstance(content, list):
        return "\n".join(
            _text_of(part.get("text") or part.get("content")) for part in content if isinstance(part, dict)
        )
    return content if isinstance(content, str) else ""


_TITLE = r"(?:Parent(?: \d+)?: .+|Their common ancestor: .+|What the proposal is laid over)"
_FIELD = re.compile(r"^## Field `([^`]+)`\n\n~~~~~~\n(.*?)\n~~~~~~$", flags=re.DOTALL | re.MULTILINE)


def _sections(text: str) -> list[tuple[str, dict[str, str]]]:
    """Return the titles of `parent.md`, each with the texts of its fields.

    Lines between fences belong to a text, even if they look like titles.
    """
    places = [(found.start(), found[1], found[2]) for found in _FIELD.finditer(text)]
    spans = [found.span() for found in _FIELD.finditer(text)]
    titles = [
        (found.start(), found[1])
        for found in re.finditer(rf"^# ({_TITLE})$", text, flags=re.MULTILINE)
        if not any(start < found.start() < end for start, end in spans)
    ]
    ends = [start for start, _ in titles[1:]] + [len(text)]
    return [
        (title, {name: value for at, name, value in places if start < at < end})
        for (start, title), end in zip(titles, ends, strict=True)
    ]


# A label follows an empty line, and a row begins with its only input: a feedback may contain similar lines.
_LABEL = re.compile(r"(?<=\n\n)((?<=\A\n\n)Input|Output|Objectives|Feedback|Details|Trace|Record): ")


def _rows(evidence: str) -> list[Row]:
    rows = []
    for part in re.split(r"^## Row (?=\S.* \((?:score [^)]+|no score)\)$)", evidence, flags=re.MULTILINE)[1:]:
        title, _, rest = part.partition("\n")
        name, _, told = title.rpartition(" (")
        score = told.removesuffix(")").removeprefix("score ")
        pieces = _LABEL.split(f"\n{rest}")[1:]
        labelled = [(label, text.strip()) for label, text in zip(pieces[::2], pieces[1::2], strict=True)]
        shown = {label: _object(text) for label, text in labelled if label != "Feedback"}
        record = shown.get("Record", {})
        said = record.get("actionable_side_info")
        spare = {name: value for name, value in said.items() if name != "feedback"} if isinstance(said, dict) else {}
        rows.append(
            Row(
                row_id=name,
                input=shown.get("Input", {}),
                score=None if score == "no score" else float(score),
                feedback=[text for label, text in labelled if label == "Feedback"],
                details=shown.get("Details") or spare,
                record=record,
            )
        )
    return rows


def _attempts(rejected: str) -> list[Attempt]:
    attempts = []
    for part in re.split(r"^## (?=\S+: )", rejected, flags=re.MULTILINE)[1:]:
        title, _, rest = part.partition("\n")
        candidate_id, _, reason = title.partition(": ")
        diffs = re.findall(r"^~~~~~~\n(.*?)~~~~~~$", rest, flags=re.DOTALL | re.MULTILINE)
        lines = [line for diff in diffs for line in diff.splitlines()]
        added = [line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")]
        removed = [line[1:] for line in lines if line.startswith("-") and not line.startswith("---")]
        attempts.append(Attempt(candidate_id, reason, added, removed))
    return attempts


def _object(text: str) -> Json:
    """Parse a text as a JSON object; a truncated one gives an empty object."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
