"""The strategy of the offline reflector: counts the words of wrongly and correctly routed tickets."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from shared.brief import Brief, Proposal, Row, proposals
from wording import QUEUES, guidance, stem, stems, words

Lines = dict[str, list[str]]


@dataclass(frozen=True)
class RoutedTicket:
    """A ticket of the evidence, with the queue it was routed to and its true queue."""

    text: str
    predicted: str
    expected: str

    @property
    def is_lost(self) -> bool:
        """Whether it was routed to a wrong queue."""
        return self.predicted != self.expected


@dataclass(frozen=True)
class Evidence:
    """The evidence to learn from: the prompts of the parents, their tickets, and rejected lines."""

    parents: list[str]
    rows: list[RoutedTicket]
    tried: str = ""


def propose(brief: Brief) -> list[Proposal]:
    """Return new proposals for the only field of the program, the best idea first."""
    name = brief.components[0]
    parents = [texts[name] for texts in brief.parents]
    evidence = Evidence(parents, routed(brief.rows), "\n".join(sorted(brief.tried)))
    ideas: list[tuple[str, Callable[[Evidence], Lines]]] = [
        ("the two most telling words of every lost ticket", lambda evidence: learn(evidence, most=2)),
        ("more words of every lost ticket, and no word that misled", lambda it: narrow(learn(it, most=4), it)),
        ("the most telling word of every lost ticket", lambda evidence: learn(evidence, most=1)),
        ("what speaks against a wrong queue", exclude),
        ("no word that misled", lambda evidence: narrow(guidance(parents[0]), evidence)),
    ]
    if len(parents) > 1:
        ideas.insert(0, ("the lines of both parents together", join))
    known = brief.tried | set(parents[0].splitlines())
    prompts = ((idea, with_guidance(parents[0], make(evidence))) for idea, make in ideas)
    fresh = ((idea, prompt) for idea, prompt in prompts if set(prompt.splitlines()) - known)
    return proposals(name, parents[0], fresh)


def routed(rows: list[Row]) -> list[RoutedTicket]:
    """Parse the rows whose feedback names the routed and the true queue of the ticket."""
    found = []
    for row in rows:
        text, said = row.input.get("text") or row.input.get("input"), " ".join(row.feedback)
        wrong = re.search(r"Wrong: the ticket was routed to (\w+), but it belongs to (\w+)\.", said)
        right = re.search(r"Right: the ticket was routed to (\w+)\.", said)
        if text and wrong:
            found.append(RoutedTicket(text, predicted=wrong[1], expected=wrong[2]))
        elif text and right:
            found.append(RoutedTicket(text, predicted=right[1], expected=right[1]))
    return found


def learn(evidence: Evidence, most: int) -> Lines:
    """Add words that distinguish misrouted tickets from those of other queues to the line of the true queue."""
    lines = guidance(evidence.parents[0])
    tried = stems(evidence.tried)
    for row in evidence.rows:
        if not row.is_lost or row.expected not in QUEUES:
            continue
        known = stems(" ".join(lines.setdefault(row.expected, [])))
        fresh = {stem(word): word for word in reversed(words(row.text)) if stem(word) not in known}
        worth = {word: word_weight(found, row, lines, evidence.rows, tried) for found, word in fresh.items()}
        ranked = sorted((word for word in worth if worth[word] > 0), key=lambda word: (-worth[word], word))
        lines[row.expected].extend(ranked[:most])
    return lines


def word_weight(found: str, row: RoutedTicket, lines: Lines, rows: list[RoutedTicket], tried: set[str]) -> float:
    """Return how well a word indicates the true queue: it is frequent there and rare elsewhere."""
    same = sum(found in stems(other.text) for other in rows if other.expected == row.expected)
    elsewhere = sum(found in stems(other.text) for other in rows if other.expected != row.expected)
    claimed = sum(found in stems(" ".join(entries)) for queue, entries in lines.items() if queue != row.expected)
    # Longer words are rarer. A word of a rejected prompt ranks lower.
    return same - elsewhere - 0.5 * claimed - 0.5 * (found in tried) + min(len(found), 8) / 10


def narrow(lines: Lines, evidence: Evidence) -> Lines:
    """Remove the entries that attracted misrouted tickets and no correct one."""
    for row in evidence.rows:
        if not row.is_lost:
            continue
        seen = stems(row.text)
        for entry in list(lines.get(row.predicted, [])):
            helps = any(stems(entry) & stems(won.text) for won in evidence.rows if won.expected == row.predicted)
            if stems(entry) & seen and not helps:
                lines[row.predicted].remove(entry)
    return lines


def exclude(evidence: Evidence) -> Lines:
    """Add a `not` entry to the line of the wrong queue for a word of a misrouted ticket."""
    lines = guidance(evidence.parents[0])
    for row in evidence.rows:
        if row.is_lost and row.predicted in lines:
            others = set().union(*(stems(won.text) for won in evidence.rows if won.expected == row.predicted))
            fresh = [word for word in words(row.text) if stem(word) not in others]
            against = [f"not {word}" for word in sorted(fresh, key=lambda word: (-len(word), word))]
            lines[row.predicted].extend([entry for entry in against if entry not in lines[row.predicted]][:1])
    return lines


def join(evidence: Evidence) -> Lines:
    """Merge the entries of all parents."""
    lines = guidance(evidence.parents[0])
    for parent in evidence.parents[1:]:
        for queue, entries in guidance(parent).items():
            own = lines.setdefault(queue, [])
            own.extend(entry for entry in entries if entry not in own)
    return lines


def with_guidance(parent: str, lines: Lines) -> str:
    """Return the parent's prompt with other guidance lines; the rest is unchanged."""
    if guidance(parent) == lines:
        return parent
    rest = [line for line in parent.splitlines() if not guidance(line)]
    new = [f"- {queue}: {', '.join(lines[queue])}" for queue in QUEUES if lines.get(queue)]
    return "\n".join([*rest, *new])
