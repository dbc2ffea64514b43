"""The task: `route_ticket` routes one ticket with a given prompt and scores the answer, without a key or a model."""

from __future__ import annotations

from typing import Any

from policy import Answer, route

NO_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost_usd": 0.0}
"""No model is called, so the cost is known to be zero."""


def route_ticket(router_prompt: str, text: str, queue: str) -> dict[str, Any]:
    """Route each support ticket of an online shop to one of six queues.

    The policy compares the words of a ticket with the lines `- queue: entry, entry, ...` of the prompt. The queue with
    most words in common wins; a word that several queues name counts less for each. An entry that begins with `not`
    speaks against its queue. A ticket that no line speaks for goes to other. Keep one line for each queue, and write
    words that many tickets use, not whole tickets.
    """
    answer = route(router_prompt, text)
    return {
        "score": answer.queue == queue,
        "feedback": feedback(answer, queue),
        "output": answer.queue,
        "usage": NO_USAGE,
        "trace": {"event_history": [{"type": "words_compared", "met": answer.met, "answer": answer.queue}]},
    }


def feedback(answer: Answer, queue: str) -> str:
    """Return sentences that say how a ticket was routed, and why."""

    def matched_words(name: str) -> str:
        met = answer.met.get(name)
        return f"The guidance of {name} shares {', '.join(met)} with it." if met else ""

    if answer.queue == queue:
        reason = matched_words(queue) or "No guidance speaks for another queue."
        return f"Right: the ticket was routed to {queue}. {reason}"
    reasons = [
        matched_words(answer.queue) or "No guidance speaks for any queue.",
        matched_words(queue) or f"The guidance of {queue} shares no word with it.",
    ]
    return " ".join([f"Wrong: the ticket was routed to {answer.queue}, but it belongs to {queue}.", *reasons])
