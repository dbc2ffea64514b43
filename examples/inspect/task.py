"""An Inspect task that routes support tickets, with a scorer and a model that needs no key."""

from __future__ import annotations

import sys
from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.model import ChatMessage, GenerateConfig, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer
from inspect_ai.solver import TaskState, generate, system_message
from inspect_ai.tool import ToolChoice, ToolInfo

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ticket_router"))

from policy import route

TICKETS = Path(__file__).resolve().parents[1] / "ticket_router" / "tickets.jsonl"
SYSTEM = """\
You route support tickets of an online shop. Read the ticket and name the one queue that should answer it.
- billing: invoice, payment
- delivery: parcel, tracking
- returns: return
- account: password, login
- technical: error
- other: anything else"""


@scorer(metrics=[accuracy()])
def right_queue() -> Scorer:
    """Score a ticket, with an explanation that the proposer reads as feedback."""

    async def score(state: TaskState, target: Target) -> Score:
        queue = state.output.completion
        if queue == target.text:
            return Score(value=CORRECT, explanation=f"Right: the ticket was routed to {queue}.")
        wrong = f"Wrong: the ticket was routed to {queue}, but it belongs to {target.text}."
        return Score(value=INCORRECT, explanation=wrong)

    return score


def answer(messages: list[ChatMessage], _: list[ToolInfo], __: ToolChoice, ___: GenerateConfig) -> ModelOutput:
    """Stand in for a model: follow the system message word by word."""
    found = ModelOutput.from_content("offline", route(messages[0].text, messages[-1].text).queue)
    # Without it, Inspect counts tokens with a table that it downloads.
    found.usage = ModelUsage(input_tokens=0, output_tokens=0, total_tokens=0)
    return found


@task
def ticket_router(system: str = SYSTEM) -> Task:
    """Route support tickets to queues."""
    return Task(
        dataset=json_dataset(str(TICKETS), FieldSpec(input="text", target="queue", metadata=["split"])),
        solver=[system_message(system), generate()],
        scorer=right_queue(),
        model=get_model("mockllm/model", custom_outputs=answer),
    )
