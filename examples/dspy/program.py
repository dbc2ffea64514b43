"""A DSPy program that routes support tickets, its metric, and a language model that needs no key."""

from __future__ import annotations

import sys
from pathlib import Path

import dspy
from dspy.lm15 import Message, Request, Response, Usage

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ticket_router"))

from policy import route


class Route(dspy.Signature):
    """Read the ticket of an online shop and name the one queue that should answer it.

    - billing: invoice, payment
    - delivery: parcel, tracking
    - returns: return
    - account: password, login
    - technical: error
    - other: anything else
    """

    text: str = dspy.InputField()
    queue: str = dspy.OutputField()


class Router(dspy.Module):
    """Routes support tickets to queues."""

    def __init__(self) -> None:
        self.router = dspy.Predict(Route)

    def forward(self, text: str) -> dspy.Prediction:
        """Route one ticket."""
        return self.router(text=text)


def metric(example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> dspy.Prediction:
    """Score 1 for the right queue, with feedback that says what was wrong."""
    if prediction.queue == example.queue:
        return dspy.Prediction(score=1, feedback=f"Right: the ticket was routed to {prediction.queue}.")
    wrong = f"Wrong: the ticket was routed to {prediction.queue}, but it belongs to {example.queue}."
    return dspy.Prediction(score=0, feedback=wrong)


class OfflineEngine:
    """Stands in for a model: it follows the instructions word by word. Replace it with `dspy.LM("openai/...")`."""

    def complete(self, request: Request) -> Response:
        """Answer one request in the format of DSPy's chat adapter."""
        ticket = (request.messages[-1].text or "").split("[[ ## text ## ]]")[-1].partition("Respond with")[0]
        answer = f"[[ ## queue ## ]]\n{route(str(request.system), ticket).queue}\n\n[[ ## completed ## ]]"
        usage = Usage(input_tokens=0, output_tokens=0, total_tokens=0)
        return Response(id=None, model="offline", message=Message.assistant(answer), finish_reason="stop", usage=usage)


dspy.configure(lm=dspy.LM("offline", engine=OfflineEngine(), cache=False))
