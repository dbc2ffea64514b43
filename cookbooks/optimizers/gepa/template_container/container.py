"""A task to copy: change the three numbered places, and your own prompt can be optimized. Started with a port."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import uvicorn
from synth_containers import Container
from synth_containers.sdk import RolloutResult

# 1. The text to improve, as it is today.
PROMPT = "A message is spam if it holds one of these words.\nSpam words: winner"

# 2. Your rows, in two splits. `input` is shown to the proposer; `answer` stays in this process.
ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").read_text("utf-8").splitlines()]


# 3. Your evaluation: run your program with the prompt on one input, and compare with the answer.
def evaluate(prompt: str, row: dict[str, Any]) -> tuple[float, str]:
    """Return a score, larger is better, and feedback in words: what was wrong, and what would have been right."""
    # Ask your model or your agent here. This toy looks for the words that the prompt lists.
    listed = prompt.lower().partition("spam words:")[2].replace(",", " ").split()
    found = [word for word in listed if word in row["input"]["message"].lower().split()]
    said = "spam" if found else "fine"
    if said == row["answer"]:
        return 1.0, f"Right: {said}."
    return 0.0, f"Wrong: said {said} because of the words {found}, but the message is {row['answer']}."


container = Container("my-task", description="Tell spam from messages that are fine", default_submission_mode="sync")
splits = {name: [row for row in ROWS if row["split"] == name] for name in ("train", "test")}
tasks = {f"{name}:{seed}": row for name, rows in splits.items() for seed, row in enumerate(rows)}
container.taskset(lambda: {"taskset_id": "my_rows", "splits": {name: len(rows) for name, rows in splits.items()}})


@container.program
def program() -> dict[str, Any]:
    module = {"module_id": "prompt", "role": "system", "content": PROMPT, "mutable": True, "candidate_field": "prompt"}
    found = {"version": "prompt_program.v1", "program_id": "my_task", "modules": [module]}
    target = {"module_id": "prompt", "candidate_field": "prompt"}
    return found | {"target_modules": [target], "seed_candidate": {"prompt": PROMPT}}


@container.taskset_tasks
def rows_of(request: dict[str, Any]) -> dict[str, Any]:
    return {"tasks": [{"task_id": name, **tasks[name]["input"]} for name in request["task_ids"]]}


@container.rollout
async def rollout(request: dict[str, Any]) -> dict[str, Any]:
    name = request["task"]["task_id"]
    score, feedback = await asyncio.to_thread(evaluate, request["candidate"]["prompt"], tasks[name])
    result = RolloutResult(request["rollout_id"], score, actionable_side_info={"feedback": feedback}).to_dict()
    return {**result, "example_id": name, "usage": {"prompt_tokens": 0, "completion_tokens": 0, "cost_usd": 0.0}}


if __name__ == "__main__":
    uvicorn.run(container.fastapi(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
