"""A synth-container whose task is to name the intent of a bank customer's query.

One text is improved: the prompt, with guidance or examples for each intent. The policy `offline` needs no key and no
network; `smollm2` asks a small language model in this process, for eight intents; `llm` asks a model server. A rollout
is right or wrong by the true intent of its query, which does not leave the container before the rollout is scored.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fastapi import FastAPI
from shared.container import ZERO_USAGE, application, prompt_program, rollout_record
from shared.llm import Completion, complete
from shared.rows import Json
from shared.serving import arguments, serve

from banking77_container.policy import UNKNOWN, Answer, classify
from banking77_container.smollm2 import INTENTS, Reading, SmolLM2
from banking77_container.tasks import Data, Query, load_real, load_sample, only_intents

FAMILY = "banking77"
FIELD = "classifier_prompt"
PREFACE = "You classify queries of a bank's customers. Answer with the one intent that fits, from this list:"


def seed_prompt(data: Data) -> str:
    """Return the initial prompt: the names of the intents without any guidance."""
    return "\n".join([PREFACE, *(f"- {intent}" for intent in data.intents)])


def program(data: Data) -> Json:
    """Return the program: one mutable text, and the query as its input."""
    return prompt_program(
        FAMILY,
        FIELD,
        seed_prompt(data),
        names=("classifier", "query"),
        question="{text}",
        variables=["text"],
        data=data.name,
    )


EMBEDDING_GUIDANCE: Json = {
    "premises": [
        "Guidance stands in lines `- intent: phrase; phrase; ...`, one line for each intent.",
        "A query goes to the intent whose name and phrases are most similar to it in meaning.",
        "Phrases in the words of customers work best.",
    ],
    "constraints": ["Keep the line of every intent.", "Separate phrases with semicolons."],
}
SMALL_MODEL_GUIDANCE: Json = {
    "premises": [
        "A model of 135 million parameters continues the text: the prompt, `Query: ...`, `Intent:`.",
        "It imitates examples in this form: a line `Query: ...` and a line `Intent: ...`, then an empty line.",
        "It prefers intents that it saw last or often; the choice and the order of examples decide.",
    ],
    "constraints": ["Write each example in exactly this form.", "Show every intent of the output space."],
}


def task_info(data: Data, guidance: Json) -> Json:
    """Return the description of the task for a proposer."""
    return {
        "task": {
            "task_id": FAMILY,
            "name": "Banking77",
            "description": f"Name the intent of a bank customer's query, one of {len(data.intents)}.",
        },
        "output_space": {"kind": "label", "labels": list(data.intents)},
        "proposal_guidance": guidance,
    }


def classification_feedback(query: Query, answer: Answer) -> Json:
    """Return the feedback on a classification by the offline policy, as text and as details."""
    details: Json = {"predicted": answer.intent, "expected": query.intent}
    if not answer.matches:
        return {"feedback": "Wrong: the prompt lists no intent that is known.", **details}
    first, expected = answer.matches[0], answer.match(query.intent)
    details["nearest"] = first.nearest
    if first.intent != query.intent:
        words = f"Wrong: the query was taken for {first.intent} because of {first.nearest!r} ({first.similarity})."
        if expected is None:
            return {"feedback": f"{words} Its intent is {query.intent}, which the prompt does not list.", **details}
        near = f"the nearest guidance there is {expected.nearest!r} ({expected.similarity})"
        return {"feedback": f"{words} Its intent is {query.intent}; {near}.", **details}
    words = f"Right: {first.intent} ({first.similarity}), because of {first.nearest!r}."
    if len(answer.matches) > 1:
        second = answer.matches[1]
        details |= {"runner_up": second.intent, "lead": round(first.similarity - second.similarity, 4)}
        words += f" The next one is {second.intent} ({second.similarity})."
    return {"feedback": words, **details}


def reading_feedback(query: Query, reading: Reading) -> Json:
    """Return the feedback on a classification by the small model, as text and as details."""
    said, share = reading.intent, reading.shares[reading.intent]
    words = f"Right: {said} ({share})."
    if said != query.intent:
        words = f"Wrong: the model answered {said} ({share}). The intent is {query.intent}"
        words += f" ({reading.shares[query.intent]})." if query.intent in reading.shares else "."
    return {"feedback": words, "predicted": said, "expected": query.intent, "shares": reading.shares}


def named_intent(data: Data, said: str) -> str:
    """Return the intent that a model's answer names: the first one, or the longest of several at one position."""
    found = [(match.start(), -len(intent), intent) for intent in data.intents if (match := _find(intent, said))]
    return min(found)[2] if found else UNKNOWN


def _find(intent: str, said: str) -> re.Match[str] | None:
    return re.search(rf"(?<!\w){re.escape(intent.rstrip('?'))}(?!\w)", said, flags=re.IGNORECASE)


def record(request: Json, query: Query, side_info: Json, usage: Json, events: list[Json]) -> Json:
    """Return the record of a rollout, scored by the true intent only."""
    is_right = side_info["predicted"] == query.intent
    reward = 1.0 if is_right else 0.0
    return rollout_record(
        str(request["rollout_id"]),
        query,
        reward,
        family=FAMILY,
        succeeded=is_right,
        objectives={"accuracy": reward},
        told=side_info,
        usage=usage,
        events=events,
    )


async def ask_model(request: Json, data: Data, query: Query, prompt: str) -> Json:
    """Classify a query with the model that the rollout names."""
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": query.text}]
    completion: Completion = await complete(messages, request.get("policy") or {})
    intent = named_intent(data, completion.text)
    feedback = f"Right: {intent}." if intent == query.intent else f"Wrong: the query was taken for {intent}."
    if intent == UNKNOWN:
        feedback = f"Wrong: the answer {completion.text[:80]!r} names no intent of the list."
    if intent != query.intent:
        feedback += f" Its intent is {query.intent}."
    side_info = {"feedback": feedback, "predicted": intent, "expected": query.intent}
    return record(
        request, query, side_info, dict(completion.usage), [{"type": "llm_response", "text": completion.text}]
    )


def build(data: Data, policy: str, log: Path | None) -> FastAPI:
    """Return the application."""
    small = SmolLM2(data.intents) if policy == "smollm2" else None

    async def rollout(request: Json, query: Query, prompt: str) -> Json:
        if small is not None:
            reading = await asyncio.to_thread(small.read, prompt, query.text)
            usage = {"prompt_tokens": reading.prompt_tokens, "completion_tokens": 1, "cost_usd": 0.0}
            usage["total_tokens"] = reading.prompt_tokens + 1
            events = [{"type": "llm_response", "text": reading.intent}]
            return record(request, query, reading_feedback(query, reading), usage, events)
        if policy == "llm":
            return await ask_model(request, data, query, prompt)
        answer = classify(prompt, data.intents, query.text)
        ranks = [{"intent": match.intent, "similarity": match.similarity} for match in answer.matches[:3]]
        return record(
            request,
            query,
            classification_feedback(query, answer),
            ZERO_USAGE,
            [{"type": "compared", "most_similar": ranks}],
        )

    guidance = EMBEDDING_GUIDANCE if small is None else SMALL_MODEL_GUIDANCE
    texts = {"program": program(data), "task_info": task_info(data, guidance), "taskset": {"taskset_id": data.name}}
    return application("banking77", "intents of bank customers", data.queries, rollout, **texts, log=log)


def main() -> None:
    """Serve the container on loopback until the process ends."""
    parser = arguments(__doc__, "smollm2")
    # Only the option selects the data, not an environment variable: both data sets use the same task ids.
    parser.add_argument("--data", type=Path, metavar="DIR", help="has train.csv and test.csv; the sample without it")
    parser.add_argument("--train-per-intent", type=int, default=10, metavar="N", help="rows of --data that are served")
    parser.add_argument("--test-per-intent", type=int, default=20, metavar="N", help="rows of --data that are served")
    args = parser.parse_args()
    if args.policy == "smollm2" and args.data:
        parser.error("--policy smollm2 serves the sample: leave --data out")
    data = load_real(args.data, args.train_per_intent, args.test_per_intent) if args.data else load_sample()
    if args.policy == "smollm2":
        data = only_intents(data, INTENTS)
    serve(build(data, args.policy, args.log), args)


if __name__ == "__main__":
    main()
