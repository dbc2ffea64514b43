"""The strategy of the template's reflector: it adds words of misclassified messages and removes misleading words."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from shared.brief import Brief, NoBriefError, Proposal, proposals

MARK = "Spam words:"


def propose(brief: Brief) -> list[Proposal]:
    """Return up to two proposals: many new words, and few."""
    parent = brief.base.get("prompt", "")
    before, mark, listed = parent.partition(MARK)
    if not mark:
        raise NoBriefError("this reflector knows only the template's own task; name a model in [proposer] for yours")
    known = [word for word in listed.replace(",", " ").split() if word]
    messages = [(str(row.input.get("message", "")).lower().split(), " ".join(row.feedback)) for row in brief.rows]
    spam = Counter(word for words, said in messages for word in set(words) if "the message is spam" in said)
    fine = {word for words, said in messages for word in words if "is fine" in said or said.startswith("Right: fine")}
    kept = [word for word in known if word not in fine]
    new = sorted(
        (word for word in spam if len(word) > 3 and word not in fine and word not in known),
        key=lambda word: (-spam[word], word),
    )
    ideas = ((8, "many words of spam that was missed"), (3, "the commonest words of spam that was missed"))
    prompts = ((idea, f"{before}{MARK} {', '.join([*kept, *new[:most]])}") for most, idea in ideas)
    return proposals("prompt", parent, prompts)
