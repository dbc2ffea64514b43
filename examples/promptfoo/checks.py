"""A Python assertion of promptfoo. Its reason is the feedback that the proposer reads."""

from __future__ import annotations

from typing import Any


def right_queue(output: str, context: dict[str, Any]) -> dict[str, Any]:
    """Pass if the ticket was routed to its queue."""
    queue = context["vars"]["queue"]
    if output == queue:
        return {"pass": True, "score": 1.0, "reason": f"Right: the ticket was routed to {output}."}
    wrong = f"Wrong: the ticket was routed to {output}, but it belongs to {queue}."
    return {"pass": False, "score": 0.0, "reason": wrong}
