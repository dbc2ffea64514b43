"""How the offline reflector improves guidance: lost queries become phrases of their intent, misleading phrases go."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from shared.brief import Brief, Proposal, proposals

from banking77_container.guidance import Guidance, as_phrase, read, written

# A phrase that draws so many queries of the evidence to its intent which belong elsewhere does harm.
MISLED = 2

# A query that is right by less than this is as good a lesson as one that is wrong: the next like it may be lost.
NARROW = 0.1


@dataclass(frozen=True)
class Case:
    """A query of the evidence, what it was taken for, by which phrase, and what it is."""

    text: str
    predicted: str
    nearest: str
    expected: str
    lead: float = 1.0

    @property
    def is_lost(self) -> bool:
        """Whether it was taken for another intent."""
        return self.predicted != self.expected

    @property
    def teaches(self) -> bool:
        """Whether its text should be written down: it was lost, or nearly."""
        return self.is_lost or self.lead < NARROW


def propose(brief: Brief) -> list[Proposal]:
    """Return proposals, the best idea first."""
    field = brief.components[0]
    parent = brief.base[field]
    if len(brief.parents) > 1:
        texts = [texts[field] for texts in brief.parents]
        return [Proposal({field: joined(texts)}, "the phrases of both parents together")]
    cases = cases_of(brief)
    ideas = [
        (
            "every query that was lost, or nearly, becomes a phrase of its intent; phrases that misled are gone",
            learned(pruned(read(parent), cases), cases),
        ),
        ("every lost query becomes a phrase of its intent", learned(read(parent), [it for it in cases if it.is_lost])),
        ("queries of the intents that fail most become phrases", learned(read(parent), most_failing(cases))),
    ]
    return proposals(field, parent, ((idea, written(parent, guidance)) for idea, guidance in ideas))


def cases_of(brief: Brief) -> list[Case]:
    """Read the rows whose feedback says what the query was taken for and what it is."""
    cases = []
    for row in brief.rows:
        text, details = row.input.get("text"), row.details
        if isinstance(text, str) and "expected" in details and "predicted" in details:
            nearest = str(details.get("nearest", ""))
            lead = float(details.get("lead", 1.0))
            cases.append(Case(text, str(details["predicted"]), nearest, str(details["expected"]), lead))
    return cases


def learned(guidance: Guidance, cases: list[Case]) -> Guidance:
    """Give the line of the expected intent the text of each query that teaches something."""
    grown = {intent: list(phrases) for intent, phrases in guidance.items()}
    for case in cases:
        phrases, phrase = grown.setdefault(case.expected, []), as_phrase(case.text)
        if case.teaches and phrase not in phrases:
            phrases.append(phrase)
    return grown


def most_failing(cases: list[Case]) -> list[Case]:
    """Return the queries of that half of the intents which fail most."""
    failures = Counter(case.expected for case in cases if case.is_lost)
    ranked = sorted(failures, key=lambda intent: (-failures[intent], intent))
    chosen = frozenset(ranked[: (len(ranked) + 1) // 2])
    return [case for case in cases if case.expected in chosen]


def pruned(guidance: Guidance, cases: list[Case]) -> Guidance:
    """Take out the phrases that drew more queries to a wrong intent than to their own."""
    misled = Counter((case.predicted, case.nearest) for case in cases if case.is_lost)
    helped = Counter((case.predicted, case.nearest) for case in cases if not case.is_lost)
    bad = {mark for mark, count in misled.items() if count >= MISLED and count > helped[mark]}
    return {
        intent: [phrase for phrase in phrases if (intent, phrase) not in bad] for intent, phrases in guidance.items()
    }


def joined(prompts: list[str]) -> str:
    """Return the first prompt with the phrases of all of them."""
    guidance = read(prompts[0])
    for prompt in prompts[1:]:
        for intent, phrases in read(prompt).items():
            own = guidance.setdefault(intent, [])
            own.extend(phrase for phrase in phrases if phrase not in own)
    return written(prompts[0], guidance)
