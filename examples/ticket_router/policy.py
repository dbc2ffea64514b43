"""The offline policy: it follows the guidance of the prompt word by word, and has no other knowledge of queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from wording import guidance, stems

FALLBACK = "other"


@dataclass(frozen=True)
class Answer:
    """The queue that the policy chose, and the matching words of each queue's guidance."""

    queue: str
    met: dict[str, list[str]] = field(default_factory=dict)


def route(prompt: str, ticket: str) -> Answer:
    """Return the queue whose guidance has most in common with a ticket; the first one wins a tie.

    A word in the guidance of several queues counts less for each of them. An entry that begins with `not` counts
    against its queue. A ticket without a match goes to `other`.
    """
    lines = guidance(prompt)
    signs = {queue: [_sign(entry) for entry in entries] for queue, entries in lines.items()}
    spread: dict[str, int] = {}
    for entries in signs.values():
        for stem in set().union(*(found for weight, found in entries if weight > 0)):
            spread[stem] = spread.get(stem, 0) + 1
    seen = stems(ticket)
    scores: dict[str, Fraction] = {}
    met: dict[str, list[str]] = {}
    for queue, entries in signs.items():
        speaks_for = set().union(*(found & seen for weight, found in entries if weight > 0))
        speaks_against = set().union(*(found & seen for weight, found in entries if weight < 0))
        scores[queue] = sum((Fraction(1, spread[stem]) for stem in speaks_for), Fraction(-len(speaks_against)))
        if speaks_for:
            met[queue] = sorted(speaks_for)
    best = max(scores, key=lambda queue: scores[queue], default=FALLBACK)
    return Answer(best if scores.get(best, 0) > 0 else FALLBACK, met)


def _sign(entry: str) -> tuple[int, set[str]]:
    """Return whether an entry counts for or against its queue, and the stems of its words."""
    against = entry.lower().startswith("not ")
    return (-1 if against else 1), stems(entry)
