"""A task to copy: `evaluate` scores one row. The prompt is in prompt.txt, and the rows are in rows.csv."""

from __future__ import annotations

from typing import Any


def evaluate(prompt: str, message: str, label: str) -> dict[str, Any]:
    """Tell spam from messages that are fine."""
    # Ask your model or your agent here. This toy looks for the words that the prompt lists.
    listed = prompt.lower().partition("spam words:")[2].replace(",", " ").split()
    found = [word for word in listed if word in message.lower().split()]
    said = "spam" if found else "fine"
    # The proposer learns from the feedback: what was wrong, and what would have been right.
    feedback = f"Right: {said}."
    if said != label:
        feedback = f"Wrong: said {said} because of the words {found}, but the message is {label}."
    # What the call of your model cost. This toy calls none.
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "cost_usd": 0.0}
    return {"score": said == label, "feedback": feedback, "usage": usage}
