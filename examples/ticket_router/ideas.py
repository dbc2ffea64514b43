"""How the offline reflector improves a prompt: plain counting over the words of lost and won tickets."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from shared.brief import Brief, Proposal, Row, proposals
from wording import QUEUES, guidance, stem, stems, words

Lines = dict[str, list[str]]


@dataclass(frozen=True)
class Routed:
    """A ticket of the evidence, where it went and where it belongs."""

    text: str
    predicted: str
    expected: str

    @property
    def is_lost(self) -> bool:
        """Whether it went to a wrong queue."""
        return self.predicted != self.expected


@dataclass(frozen=True)
class Lesson:
    """What there is to learn from: the prompts of the parents, their tickets, and lines that were rejected."""

    parents: list[str]
    rows: list[Routed]
    tried: str = ""


def propose(brief: Brief) -> list[Proposal]:
    """Return proposals for the one field of the program, the best idea first. None was tried before."""
    name = brief.components[0]
    parents = [texts[name] for texts in brief.parents]
    lesson = Lesson(parents, routed(brief.rows), "\n".join(sorted(brief.tried)))
    ideas: list[tuple[str, Callable[[Lesson], Lines]]] = [
        ("the two most telling words of every lost ticket", lambda lesson: learn(lesson, most=2)),
        ("more words of every lost ticket, and no word that misled", lambda it: narrow(learn(it, most=4), it)),
        ("the most telling word of every lost ticket", lambda lesson: learn(lesson, most=1)),
        ("what speaks against a wrong queue", exclude),
        ("no word that misled", lambda lesson: narrow(guidance(parents[0]), lesson)),
    ]
    if len(parents) > 1:
        ideas.insert(0, ("the lines of both parents together", join))
    known = brief.tried | set(parents[0].splitlines())
    prompts = ((idea, written(parents[0], make(lesson))) for idea, make in ideas)
    fresh = ((idea, prompt) for idea, prompt in prompts if set(prompt.splitlines()) - known)
    return proposals(name, parents[0], fresh)


def routed(rows: list[Row]) -> list[Routed]:
    """Read the rows whose feedback says where the ticket went and where it belongs."""
    found = []
    for row in rows:
        text, said = row.input.get("text"), " ".join(row.feedback)
        wrong = re.search(r"Wrong: the ticket was routed to (\w+), but it belongs to (\w+)\.", said)
        right = re.search(r"Right: the ticket was routed to (\w+)\.", said)
        if text and wrong:
            found.append(Routed(text, predicted=wrong[1], expected=wrong[2]))
        elif text and right:
            found.append(Routed(text, predicted=right[1], expected=right[1]))
    return found


def learn(lesson: Lesson, most: int) -> Lines:
    """Give the line of the expected queue the words that tell a lost ticket from those of other queues."""
    lines = guidance(lesson.parents[0])
    tried = stems(lesson.tried)
    for row in lesson.rows:
        if not row.is_lost or row.expected not in QUEUES:
            continue
        known = stems(" ".join(lines.setdefault(row.expected, [])))
        fresh = {stem(word): word for word in reversed(words(row.text)) if stem(word) not in known}
        worth = {word: worth_of(found, row, lines, lesson.rows, tried) for found, word in fresh.items()}
        ranked = sorted((word for word in worth if worth[word] > 0), key=lambda word: (-worth[word], word))
        lines[row.expected].extend(ranked[:most])
    return lines


def worth_of(found: str, row: Routed, lines: Lines, rows: list[Routed], tried: set[str]) -> float:
    """Return how well a word speaks for the expected queue: it is frequent there and rare elsewhere."""
    same = sum(found in stems(other.text) for other in rows if other.expected == row.expected)
    elsewhere = sum(found in stems(other.text) for other in rows if other.expected != row.expected)
    claimed = sum(found in stems(" ".join(entries)) for queue, entries in lines.items() if queue != row.expected)
    # Longer words are rarer, and a word of a rejected prompt has had its chance.
    return same - elsewhere - 0.5 * claimed - 0.5 * (found in tried) + min(len(found), 8) / 10


def narrow(lines: Lines, lesson: Lesson) -> Lines:
    """Take out the entries that drew lost tickets to a wrong queue and no ticket to the right one."""
    for row in lesson.rows:
        if not row.is_lost:
            continue
        seen = stems(row.text)
        for entry in list(lines.get(row.predicted, [])):
            helps = any(stems(entry) & stems(won.text) for won in lesson.rows if won.expected == row.predicted)
            if stems(entry) & seen and not helps:
                lines[row.predicted].remove(entry)
    return lines


def exclude(lesson: Lesson) -> Lines:
    """Say on the line of the wrong queue what speaks against it in a lost ticket."""
    lines = guidance(lesson.parents[0])
    for row in lesson.rows:
        if row.is_lost and row.predicted in lines:
            others = set().union(*(stems(won.text) for won in lesson.rows if won.expected == row.predicted))
            fresh = [word for word in words(row.text) if stem(word) not in others]
            against = [f"not {word}" for word in sorted(fresh, key=lambda word: (-len(word), word))]
            lines[row.predicted].extend([entry for entry in against if entry not in lines[row.predicted]][:1])
    return lines


def join(lesson: Lesson) -> Lines:
    """Put the entries of all parents together."""
    lines = guidance(lesson.parents[0])
    for parent in lesson.parents[1:]:
        for queue, entries in guidance(parent).items():
            own = lines.setdefault(queue, [])
            own.extend(entry for entry in entries if entry not in own)
    return lines


def written(parent: str, lines: Lines) -> str:
    """Return the parent's prompt with other guidance lines; the rest of it stays as it is."""
    if guidance(parent) == lines:
        return parent
    rest = [line for line in parent.splitlines() if not guidance(line)]
    new = [f"- {queue}: {', '.join(lines[queue])}" for queue in QUEUES if lines.get(queue)]
    return "\n".join([*rest, *new])
