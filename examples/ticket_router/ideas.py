"""How the offline reflector improves a prompt: plain counting over the words of lost and won tickets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from wording import QUEUES, guidance, stem, stems, words

Lines = dict[str, list[str]]


@dataclass(frozen=True)
class Row:
    """A ticket of the evidence, where it went and where it belongs."""

    row_id: str
    text: str
    predicted: str
    expected: str

    @property
    def is_lost(self) -> bool:
        """Whether it went to a wrong queue."""
        return self.predicted != self.expected


@dataclass(frozen=True)
class Brief:
    """What the reflector is asked and shown."""

    field: str
    parents: list[str]
    count: int = 1
    kind: str = "frontier_variation"
    rows: list[Row] = dataclasses.field(default_factory=list)
    tried: str = ""


def proposals(brief: Brief) -> list[tuple[str, str]]:
    """Return at most as many proposals as are asked for: the idea of each, and its prompt. None was tried before."""
    if not brief.parents:
        return []
    parent = brief.parents[0]
    ideas: list[tuple[str, Callable[[Brief], Lines]]] = [
        ("the two most telling words of every lost ticket", lambda brief: learn(brief, most=2)),
        ("more words of every lost ticket, and no word that misled", lambda brief: narrow(learn(brief, most=4), brief)),
        ("the most telling word of every lost ticket", lambda brief: learn(brief, most=1)),
        ("what speaks against a wrong queue", exclude),
        ("no word that misled", lambda brief: narrow(guidance(parent), brief)),
    ]
    if len(brief.parents) > 1:
        ideas.insert(0, ("the lines of both parents together", join))
    found: list[tuple[str, str]] = []
    for idea, make in ideas:
        prompt = written(parent, make(brief))
        new = set(prompt.splitlines()) - set(parent.splitlines())
        if new - set(brief.tried.splitlines()) and prompt not in [known for _, known in found]:
            found.append((idea, prompt))
    return found[: brief.count]


def learn(brief: Brief, most: int) -> Lines:
    """Give the line of the expected queue the words that tell a lost ticket from those of other queues."""
    lines = guidance(brief.parents[0])
    tried = stems(brief.tried)
    for row in brief.rows:
        if not row.is_lost or row.expected not in QUEUES:
            continue
        known = stems(" ".join(lines.setdefault(row.expected, [])))
        fresh = {stem(word): word for word in reversed(words(row.text)) if stem(word) not in known}
        worth = {word: worth_of(found, row, lines, brief.rows, tried) for found, word in fresh.items()}
        ranked = sorted((word for word in worth if worth[word] > 0), key=lambda word: (-worth[word], word))
        lines[row.expected].extend(ranked[:most])
    return lines


def worth_of(found: str, row: Row, lines: Lines, rows: list[Row], tried: set[str]) -> float:
    """Return how well a word speaks for the expected queue: it is frequent there and rare elsewhere."""
    same = sum(found in stems(other.text) for other in rows if other.expected == row.expected)
    elsewhere = sum(found in stems(other.text) for other in rows if other.expected != row.expected)
    claimed = sum(found in stems(" ".join(entries)) for queue, entries in lines.items() if queue != row.expected)
    # Longer words are rarer, and a word of a rejected prompt has had its chance.
    return same - elsewhere - 0.5 * claimed - 0.5 * (found in tried) + min(len(found), 8) / 10


def narrow(lines: Lines, brief: Brief) -> Lines:
    """Take out the entries that drew lost tickets to a wrong queue and no ticket to the right one."""
    for row in brief.rows:
        if not row.is_lost:
            continue
        seen = stems(row.text)
        for entry in list(lines.get(row.predicted, [])):
            helps = any(stems(entry) & stems(won.text) for won in brief.rows if won.expected == row.predicted)
            if stems(entry) & seen and not helps:
                lines[row.predicted].remove(entry)
    return lines


def exclude(brief: Brief) -> Lines:
    """Say on the line of the wrong queue what speaks against it in a lost ticket."""
    lines = guidance(brief.parents[0])
    for row in brief.rows:
        if row.is_lost and row.predicted in lines:
            others = set().union(*(stems(won.text) for won in brief.rows if won.expected == row.predicted))
            fresh = [word for word in words(row.text) if stem(word) not in others]
            against = [f"not {word}" for word in sorted(fresh, key=lambda word: (-len(word), word))]
            lines[row.predicted].extend([entry for entry in against if entry not in lines[row.predicted]][:1])
    return lines


def join(brief: Brief) -> Lines:
    """Put the entries of all parents together."""
    lines = guidance(brief.parents[0])
    for parent in brief.parents[1:]:
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
