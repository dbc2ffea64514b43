"""The strategy of the offline reflector for a language model: it chooses, replaces and orders examples.

A small model answers too often with some intents, mostly with those that its examples show last. The strategy reads
from the evidence which intents attract queries of others and which lose their own, and changes the examples of these.
Every query that it quotes is a train query of the evidence.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from shared.brief import Brief, Proposal, proposals

from banking77_container.examples import Example, read, with_examples


@dataclass(frozen=True)
class Case:
    """A query of the evidence: its true intent, the predicted intent, and the share of the true one."""

    text: str
    predicted: str
    expected: str
    share: float

    @property
    def is_lost(self) -> bool:
        """Whether it was misclassified."""
        return self.predicted != self.expected


def read_cases(brief: Brief) -> list[Case]:
    """Parse the rows whose details hold the shares of the intents."""
    cases = []
    for row in brief.rows:
        text, details = row.input.get("text"), row.details
        if isinstance(text, str) and isinstance(details.get("shares"), dict):
            expected = str(details["expected"])
            share = float(details["shares"].get(expected, 0.0))
            cases.append(Case(" ".join(text.split()), str(details["predicted"]), expected, share))
    return cases


def propose(brief: Brief) -> list[Proposal]:
    """Return proposals, the best idea first. Equal briefs get equal proposals."""
    field = brief.components[0]
    parent = brief.base[field]
    text, examples = read(parent)
    cases = read_cases(brief)
    # A draw that differs between minibatches, but not between repetitions of a request.
    told = "\n".join([parent, *sorted(case.text for case in cases)])
    draw = random.Random(hashlib.sha256(told.encode()).digest())  # noqa: S311 (no secret)
    ideas = first_ideas(text, cases, draw) if not examples else next_ideas(text, examples, cases, draw)
    return proposals(field, parent, ideas)


def first_ideas(text: str, cases: list[Case], draw: random.Random) -> Iterator[tuple[str, str]]:
    """Yield prompts with an example of each intent, for a prompt that has none."""
    sentence = text.split(". ")[0].split("\n")[0].rstrip(".") + "."
    yield "one typical query of each intent as example, and no list", with_examples(sentence, one_each(cases, draw))
    yield "another query of each intent as example", with_examples(sentence, one_each(cases, draw))
    yield "the list, and a query of each intent as example", with_examples(text, one_each(cases, draw))


def one_each(cases: list[Case], draw: random.Random) -> list[Example]:
    """Return one query of each intent of the evidence, in random order."""
    by_intent: dict[str, list[str]] = {}
    for case in cases:
        by_intent.setdefault(case.expected, []).append(case.text)
    chosen = [(draw.choice(texts), intent) for intent, texts in by_intent.items()]
    draw.shuffle(chosen)
    return chosen


def next_ideas(text: str, examples: list[Example], cases: list[Case], draw: random.Random) -> Iterator[tuple[str, str]]:
    """Yield changes of the examples, in random order after the completion of missing intents."""
    shown = {intent for _, intent in examples}
    spare = [example for example in one_each(cases, draw) if example[1] not in shown]
    if spare:
        yield "an example for each intent that has none", with_examples(text, [*spare, *examples])
    greedy = Counter(case.predicted for case in cases if case.is_lost).most_common()
    weak = Counter(case.expected for case in cases if case.is_lost).most_common()
    excess = Counter(dict(greedy))
    excess.subtract(dict(weak))
    ideas = []
    for intent, _ in weak[:2]:
        lost = [case.text for case in cases if case.expected == intent and case.is_lost]
        swapped = replaced(examples, intent, draw.choice(lost))
        ideas.append((f"a lost query as the example of {intent}, placed last", moved_last(swapped, intent)))
        ideas.append((f"a lost query as the example of {intent}", swapped))
    for intent, _ in greedy[:2]:
        own = [case.text for case in cases if case.expected == intent]
        if own:
            ideas.append((f"{intent} attracts others: another example", replaced(examples, intent, draw.choice(own))))
    ordered = sorted(examples, key=lambda example: -excess[example[1]])
    ideas.append(("intents that attract others first, intents that lose queries last", ordered))
    ideas.append(("another order", draw.sample(examples, len(examples))))
    draw.shuffle(ideas)
    for idea, changed in ideas:
        yield idea, with_examples(text, changed)


def replaced(examples: list[Example], intent: str, query: str) -> list[Example]:
    """Return the examples with another query for an intent."""
    return [(query, name) if name == intent else (text, name) for text, name in examples]


def moved_last(examples: list[Example], intent: str) -> list[Example]:
    """Return the examples with those of an intent at the end."""
    return sorted(examples, key=lambda example: example[1] == intent)
