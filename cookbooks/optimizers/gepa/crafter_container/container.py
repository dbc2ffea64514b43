"""A synth-container whose task is to survive and to achieve things in Crafter, by the rules of a prompt.

The offline policy needs no key: it follows the prompt rule by rule. The llm policy asks a model that reads the prompt.
The score is the number of distinct achievements of one episode, which the game itself counts.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fastapi import FastAPI, HTTPException
from shared.container import ZERO_USAGE, application, prompt_program, rollout_record
from shared.llm import complete
from shared.rows import Json, TaskRow
from shared.serving import arguments, serve

from crafter_container import llm_policy
from crafter_container.episodes import WorkerPool
from crafter_container.policy import STEPS

FAMILY = "crafter"
FIELD = "player_rules"
SEED_PROMPT = """\
1. If food is below 6, eat a cow.
2. If drink is below 6, drink water.
3. Collect wood from a tree."""
# The first world seed of each split. The splits share no world.
FIRST_WORLD = {"train": 1000, "test": 2000}
WORLDS = 100


@dataclass(frozen=True)
class Task(TaskRow):
    """An episode in one world."""

    @property
    def world(self) -> int:
        """The seed of its world."""
        return FIRST_WORLD[self.split] + self.seed

    def task(self) -> Json:
        """Return the part of the task that the optimizer may see."""
        return {**super().task(), "steps": STEPS}


TASKS = {task.task_id: task for split in FIRST_WORLD for task in (Task(split, seed) for seed in range(WORLDS))}


PROGRAM = prompt_program(
    FAMILY,
    FIELD,
    SEED_PROMPT,
    names=("player", "world"),
    question="Play {steps} steps in world {task_id}.",
    variables=["steps", "task_id"],
)
"""The program: the rules, which are mutable, and the observation as its input."""


def task_info() -> Json:
    """Return the description of the task for a proposer."""
    return {
        "task": {
            "task_id": FAMILY,
            "name": "Crafter",
            "description": "Reach as many distinct achievements as possible in one episode of the game Crafter.",
        },
        "output_space": {"kind": "number", "objectives": ["achievements", "survival"], "perfect_score": 22},
        "proposal_guidance": {
            "premises": [
                "The prompt is an ordered list of rules in controlled English, one on each line.",
                "At every step the first rule whose conditions hold and that can be followed has its turn.",
                "Where no rule has its turn, the player explores.",
                "The player knows how to walk, face and press. It knows no recipe, no order and no number but those of "
                "the rules.",
                "A rule whose presses do nothing rests until what the player has changes.",
                *llm_policy.LANGUAGE.splitlines()[3:],
            ],
            "constraints": ["Write rules that hold in every world: each episode has a world of its own."],
        },
    }


def result(rollout_id: str, task: Task, candidate: Json, told: Json) -> Json:
    """Return the record of an episode, scored by its number of achievements."""
    objectives: dict[str, float] = told["objectives"]
    exchange = told.get("exchange")
    return rollout_record(
        rollout_id,
        task,
        objectives["achievements"],
        family=FAMILY,
        succeeded=not told["details"]["death"],
        objectives=objectives,
        told={"feedback": told["feedback"], **told["details"]},
        usage=ZERO_USAGE if exchange is None else told["usage"],
        events=exchange or _history(told["details"]),
        summary={"steps": told["details"]["steps"]},
        reward_details={"final": told["final"]},
        metadata={"candidate": candidate},
    )


def _history(details: Json) -> list[Json]:
    return [{"type": "achievement", "name": name, "step": step} for name, step in details["achievements"].items()]


def build(stage: WorkerPool, args: argparse.Namespace) -> FastAPI:
    """Return the application."""

    async def rollout(request: Json, task: Task, prompt: str) -> Json:
        try:
            if args.policy == "offline":
                told = await stage.play(task.world, prompt, STEPS)
            else:
                told = await with_model(await stage.world(task.world), prompt, request.get("policy") or {})
        except BrokenProcessPool as error:
            stage.renew()
            raise HTTPException(status_code=500, detail="a process that plays was ended; new ones are there") from error
        return result(str(request["rollout_id"]), task, request["candidate"], told)

    texts = {"program": PROGRAM, "task_info": task_info(), "taskset": {"taskset_id": "crafter_worlds"}}
    return application("crafter", "plays Crafter by the rules of a prompt", TASKS, rollout, **texts, log=args.log)


async def with_model(world: bytes, prompt: str, policy: Json) -> Json:
    """Play an episode with the model that the rollout names."""
    calls = (policy.get("config") or {}).get("max_calls", llm_policy.CALLS)
    if not isinstance(calls, int) or not 1 <= calls <= llm_policy.MOST_CALLS:
        raise HTTPException(
            422, detail=f"policy.config.max_calls is {calls!r}: 1 to {llm_policy.MOST_CALLS} are possible"
        )

    async def ask(messages: Sequence[Mapping[str, str]]) -> tuple[str, Mapping[str, Any]]:
        answer = await complete(messages, policy)
        return answer.text, answer.usage

    return await llm_policy.play(world, prompt, STEPS, calls, ask)


def main() -> None:
    """Serve the container on loopback until the process ends."""
    args = arguments(__doc__).parse_args()
    stage = WorkerPool()

    def end(number: int, _: object) -> None:
        stage.close()
        os._exit(128 + number)

    # The server forwards the signal when it has stopped; then the worker processes are ended too.
    signal.signal(signal.SIGTERM, end)
    try:
        serve(build(stage, args), args)
    finally:
        stage.close()


if __name__ == "__main__":
    main()
