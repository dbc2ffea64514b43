"""A synth-container whose task is to route support tickets of a shop to the queue that should answer them.

It needs no key and calls no model: `policy.py` follows the prompt's guidance word by word. A rollout is right or wrong
by the true queue of its ticket, which does not leave the container before the rollout is scored.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cookbooks" / "optimizers" / "gepa"))

from fastapi import FastAPI, HTTPException
from policy import Answer, route
from shared.container import ZERO_USAGE, application, prompt_program, rollout_record
from shared.rows import Json, TaskRow
from shared.serving import append_log, listening_options, serve
from wording import QUEUES

FAMILY = "ticket_router"
FIELD = "router_prompt"
SEED_PROMPT = """\
You route support tickets of an online shop. Read the ticket and name the one queue that should answer it.
- billing: invoice, payment
- delivery: parcel, tracking
- returns: return
- account: password, login
- technical: error
- other: anything else"""


@dataclass(frozen=True)
class Ticket(TaskRow):
    """A ticket and its true queue."""

    text: str
    queue: str

    def task(self) -> Json:
        """Return the part of the ticket that the optimizer may see before it is routed."""
        return {**super().task(), "text": self.text}


def load_tickets(path: Path) -> dict[str, Ticket]:
    """Load all tickets by task id; the row number of a ticket is its position in its split."""
    tickets: dict[str, Ticket] = {}
    count = {"train": 0, "test": 0}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        ticket = Ticket(entry["split"], count[entry["split"]], entry["text"], entry["queue"])
        count[ticket.split] += 1
        tickets[ticket.task_id] = ticket
    return tickets


PROGRAM = prompt_program(
    FAMILY,
    FIELD,
    SEED_PROMPT,
    names=("router", "ticket"),
    question="Ticket: {text}",
    variables=["text"],
    labels=list(QUEUES),
)
"""A program with one mutable text and the ticket as its input."""


def task_info() -> Json:
    """Return the description of the task for a proposer."""
    return {
        "task": {
            "task_id": FAMILY,
            "name": "Ticket router",
            "description": "Route each support ticket of an online shop to one of six queues.",
        },
        "output_space": {"kind": "label", "labels": list(QUEUES)},
        "proposal_guidance": {
            "premises": [
                "The policy compares the words of a ticket with the lines `- queue: entry, entry, ...` of the prompt.",
                "The queue with most words in common wins. A word that several queues name counts less for each.",
                "An entry that begins with `not` speaks against its queue.",
                "A ticket that no line speaks for goes to other.",
            ],
            "constraints": ["Keep one line for each queue.", "Write words that many tickets use, not whole tickets."],
        },
    }


def feedback(ticket: Ticket, answer: Answer) -> str:
    """Return a sentence that says how a ticket was routed, and why."""

    def matched_words(queue: str) -> str:
        met = answer.met.get(queue)
        return f"The guidance of {queue} shares {', '.join(met)} with it." if met else ""

    if answer.queue == ticket.queue:
        verdict = f"Right: the ticket was routed to {answer.queue}."
        reason = matched_words(answer.queue) or "No guidance speaks for another queue."
        return f"{verdict} {reason}"
    verdict = f"Wrong: the ticket was routed to {answer.queue}, but it belongs to {ticket.queue}."
    reasons = [
        matched_words(answer.queue) or "No guidance speaks for any queue.",
        matched_words(ticket.queue) or f"The guidance of {ticket.queue} shares no word with it.",
    ]
    return " ".join([verdict, *reasons])


def result(rollout_id: str, ticket: Ticket, candidate: Json) -> Json:
    """Route one ticket and score the answer by the true queue only."""
    answer = route(str(candidate[FIELD]), ticket.text)
    is_right = answer.queue == ticket.queue
    reward = 1.0 if is_right else 0.0
    told = {"prediction": answer.queue, "expected": ticket.queue}
    return rollout_record(
        rollout_id,
        ticket,
        reward,
        family=FAMILY,
        succeeded=is_right,
        objectives={"outcome_reward": reward},
        told={"feedback": feedback(ticket, answer)},
        usage=ZERO_USAGE,
        events=[{"type": "words_compared", "met": answer.met, "answer": answer.queue}],
        summary=told,
        reward_details=told,
        metadata={"candidate": candidate},
    )


@dataclass(frozen=True)
class FaultInjection:
    """Fault injection for tests: delays, failures and a log."""

    delay: float = 0.0
    fail_every: int = 0
    log: Path | None = None

    async def before(self, rollout_id: str, ticket: Ticket, candidate: Json) -> None:
        """Log the rollout, wait for the configured delay, and fail if the rollout is selected to fail."""
        # Selected by the rollout id, so that the same rollouts fail at any concurrency. A retry has a new id.
        fails = self.fail_every > 0 and zlib.crc32(rollout_id.encode()) % self.fail_every == 0
        digest = hashlib.sha256(str(candidate[FIELD]).encode()).hexdigest()[:12]
        entry = {"rollout_id": rollout_id, "task_id": ticket.task_id, "prompt": digest, "failed": fails}
        append_log(self.log, entry)
        await asyncio.sleep(self.delay)
        if fails:
            # Any other exception would make uvicorn close the connection as well.
            raise HTTPException(status_code=500, detail="the container was told to fail")


def build(tickets: dict[str, Ticket], faults: FaultInjection) -> FastAPI:
    """Return the application."""

    async def rollout(request: Json, ticket: Ticket, _prompt: str) -> Json:
        candidate, rollout_id = request["candidate"], str(request["rollout_id"])
        await faults.before(rollout_id, ticket, candidate)
        return result(rollout_id, ticket, candidate)

    taskset = {"taskset_id": "shop_tickets", "labels": list(QUEUES), "source": "tickets.jsonl"}
    texts = {"program": PROGRAM, "task_info": task_info(), "taskset": taskset}
    return application("ticket-router", "routes support tickets", tickets, rollout, **texts, log=None)


def main() -> None:
    """Serve the container on loopback until the process ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    listening_options(parser)
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS", help="how long each rollout takes")
    parser.add_argument("--fail-every", type=int, default=0, metavar="N", help="about one rollout in N ends with 500")
    args = parser.parse_args()
    tickets = load_tickets(Path(__file__).with_name("tickets.jsonl"))
    serve(build(tickets, FaultInjection(args.delay, args.fail_every, args.log)), args)


if __name__ == "__main__":
    main()
