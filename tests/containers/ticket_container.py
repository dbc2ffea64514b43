"""The task of `examples/ticket_router` on the published SDK, with faults for tests: delays, failures and a log.

Unlike the bridge, which serves the example itself, this container does not remember rollouts.
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
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "ticket_router"))

from fastapi import FastAPI, HTTPException
from router import NO_USAGE, route_ticket
from shared.container import application, prompt_program, rollout_record
from shared.rows import Json, TaskRow
from shared.serving import append_log, listening_options, serve

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ticket_router"
FAMILY = "ticket_router"
FIELD = "router_prompt"


@dataclass(frozen=True)
class Ticket(TaskRow):
    """A ticket and its true queue."""

    text: str
    queue: str

    def task(self) -> Json:
        """Return the part of the ticket that the optimizer may see before it is routed."""
        return {**super().task(), "text": self.text}


def load_tickets() -> dict[str, Ticket]:
    """Load all tickets by task id."""
    tickets: dict[str, Ticket] = {}
    for line in (EXAMPLE / "tickets.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        number = int(row["task_id"].rpartition(":")[2])
        tickets[row["task_id"]] = Ticket(row["split"], number, row["text"], row["queue"])
    return tickets


def result(rollout_id: str, ticket: Ticket, candidate: Json) -> Json:
    """Return the record of a rollout, scored by the function of the example."""
    found = route_ticket(str(candidate[FIELD]), ticket.text, ticket.queue)
    reward, told = float(found["score"]), {"prediction": found["output"], "expected": ticket.queue}
    return rollout_record(
        rollout_id,
        ticket,
        reward,
        family=FAMILY,
        succeeded=bool(found["score"]),
        objectives={"outcome_reward": reward},
        told={"feedback": found["feedback"]},
        usage=NO_USAGE,
        events=found["trace"]["event_history"],
        summary=told,
        reward_details=told,
        metadata={"candidate": candidate},
    )


@dataclass(frozen=True)
class FaultInjection:
    """Delays, failures and a log."""

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

    program = prompt_program(
        FAMILY,
        FIELD,
        (EXAMPLE / "prompt.txt").read_text(encoding="utf-8").rstrip("\n"),
        names=("router", "ticket"),
        question="Ticket: {text}",
        variables=["text"],
    )
    task_info: Json = {"task": {"task_id": FAMILY, "name": "Ticket router", "description": route_ticket.__doc__}}
    texts: Json = {"program": program, "task_info": task_info, "taskset": {"taskset_id": "shop_tickets"}}
    return application("ticket-router", "routes support tickets", tickets, rollout, **texts, log=None)


def main() -> None:
    """Serve the container on loopback until the process ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    listening_options(parser)
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS", help="how long each rollout takes")
    parser.add_argument("--fail-every", type=int, default=0, metavar="N", help="about one rollout in N ends with 500")
    args = parser.parse_args()
    serve(build(load_tickets(), FaultInjection(args.delay, args.fail_every, args.log)), args)


if __name__ == "__main__":
    main()
