"""The strategy of the offline reflector: misclassified queries become phrases, misleading phrases are removed."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from shared.brief import Brief, Proposal, proposals

from banking77_container import reflect_examples
from banking77_container.guidance import Guidance, as_phrase, read, with_guidance

# A phrase that attracts this many queries of other intents is harmful.
MISLED = 2

# A query that is correct by less than this margin is used like a wrong one: the next similar query may be wrong.
NARROW = 0.1


@dataclass(frozen=True)
class Case:
    """A query of the evidence: its true intent, the predicted intent, and the phrase that decided."""

    text: str
    predicted: str
    nearest: str
    expected: str
    lead: float = 1.0

    @property
    def is_lost(self) -> bool:
        """Whether it was misclassified."""
        return self.predicted != self.expected

    @property
    def teaches(self) -> bool:
        """Whether its text should become a phrase: it was misclassified, or nearly."""
        return self.is_lost or self.lead < NARROW


def propose(brief: Brief) -> list[Proposal]:
    """Return proposals, the best idea first. The details of rows show whether a language model classified them."""
    if any("shares" in row.details for row in brief.rows):
        return reflect_examples.propose(brief)
    field = brief.components[0]
    parent = brief.base[field]
    if len(brief.parents) > 1:
        texts = [texts[field] for texts in brief.parents]
        return [Proposal({field: merge_prompts(texts)}, "the phrases of both parents together")]
    cases = read_cases(brief)
    ideas = [
        (
            "every query that was lost, or nearly, becomes a phrase of its intent; phrases that misled are gone",
            learn(prune(read(parent), cases), cases),
        ),
        ("every lost query becomes a phrase of its intent", learn(read(parent), [it for it in cases if it.is_lost])),
        ("queries of the intents that fail most become phrases", learn(read(parent), most_failing(cases))),
    ]
    return proposals(field, parent, ((idea, with_guidance(parent, guidance)) for idea, guidance in ideas))


def read_cases(brief: Brief) -> list[Case]:
    """Parse the rows whose feedback names the predicted and the true intent of the query."""
    cases = []
    for row in brief.rows:
        text, details = row.input.get("text"), row.details
        if isinstance(text, str) and "expected" in details and "predicted" in details:
            nearest = str(details.get("nearest", ""))
            lead = float(details.get("lead", 1.0))
            cases.append(Case(text, str(details["predicted"]), nearest, str(details["expected"]), lead))
    return cases


def learn(guidance: Guidance, cases: list[Case]) -> Guidance:
    """Add the text of each misclassified query to the line of its true intent."""
    grown = {intent: list(phrases) for intent, phrases in guidance.items()}
    for case in cases:
        phrases, phrase = grown.setdefault(case.expected, []), as_phrase(case.text)
        if case.teaches and phrase not in phrases:
            phrases.append(phrase)
    return grown


def most_failing(cases: list[Case]) -> list[Case]:
    """Return the queries of the half of the intents that fail most."""
    failures = Counter(case.expected for case in cases if case.is_lost)
    ranked = sorted(failures, key=lambda intent: (-failures[intent], intent))
    chosen = frozenset(ranked[: (len(ranked) + 1) // 2])
    return [case for case in cases if case.expected in chosen]


def prune(guidance: Guidance, cases: list[Case]) -> Guidance:
    """Remove the phrases that attracted more queries of other intents than of their own."""
    misled = Counter((case.predicted, case.nearest) for case in cases if case.is_lost)
    helped = Counter((case.predicted, case.nearest) for case in cases if not case.is_lost)
    bad = {mark for mark, count in misled.items() if count >= MISLED and count > helped[mark]}
    return {
        intent: [phrase for phrase in phrases if (intent, phrase) not in bad] for intent, phrases in guidance.items()
    }


def merge_prompts(prompts: list[str]) -> str:
    """Return the first prompt with the phrases of all prompts."""
    guidance = read(prompts[0])
    for prompt in prompts[1:]:
        for intent, phrases in read(prompt).items():
            own = guidance.setdefault(intent, [])
            own.extend(phrase for phrase in phrases if phrase not in own)
    return with_guidance(prompts[0], guidance)
