"""The task: name the intent of a bank customer's query. The bridge serves the function of a policy.

One text is improved: the prompt, with guidance or examples for each intent. The policy `offline` needs no key and no
network; `smollm2` asks a small language model in this process, for eight intents; `llm` asks a model server. A rollout
is right or wrong by the true intent of its query, which does not leave the container before the rollout is scored.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from shared.bridge import serve_function
from shared.llm import complete
from shared.serving import arguments

from banking77_container.policy import UNKNOWN, Answer, classify
from banking77_container.smollm2 import INTENTS, Reading, SmolLM2
from banking77_container.tasks import Data, load_real, load_sample, only_intents

Json = dict[str, Any]
Intents = tuple[str, ...]

FIELD = "classifier_prompt"
PREFACE = "You classify queries of a bank's customers. Answer with the one intent that fits, from this list:"
# The tokens of a policy that calls no model: none, at a known cost of zero.
NO_USAGE: Json = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost_usd": 0.0}


def seed_prompt(intents: Intents) -> str:
    """Return the initial prompt: the names of the intents without any guidance."""
    return "\n".join([PREFACE, *(f"- {intent}" for intent in intents)])


def offline(intents: Intents) -> Callable[..., Json]:
    """Return the function of the policy `offline`; the proposer sees its documentation."""

    def most_similar_intent(classifier_prompt: str, text: str, intent: str) -> Json:
        """Guidance stands in lines `- intent: phrase; phrase; ...`, one line for each intent.

        A query goes to the intent whose name and phrases are most similar to it in meaning. Phrases in the words of
        customers work best. Keep the line of every intent. Separate phrases with semicolons.
        """
        answer = classify(classifier_prompt, intents, text)
        ranks = [{"intent": match.intent, "similarity": match.similarity} for match in answer.matches[:3]]
        return result(answer_feedback(answer, intent), NO_USAGE, {"type": "compared", "most_similar": ranks})

    return most_similar_intent


def smollm2(intents: Intents) -> Callable[..., Json]:
    """Return the function of the policy `smollm2`."""
    model = SmolLM2(intents)

    def most_probable_intent(classifier_prompt: str, text: str, intent: str) -> Json:
        """Continue the text of the prompt, `Query: ...`, `Intent:` with a model of 135 million parameters.

        It imitates examples in exactly this form: a line `Query: ...` and a line `Intent: ...`, then an empty line. It
        prefers intents that it saw last or often; the choice and the order of examples decide. Show every intent.
        """
        reading = model.read(classifier_prompt, text)
        tokens = reading.prompt_tokens
        usage = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1, "cost_usd": 0.0}
        return result(reading_feedback(reading, intent), usage, {"type": "llm_response", "text": reading.intent})

    return most_probable_intent


def llm(intents: Intents) -> Callable[..., Any]:
    """Return the function of the policy `llm`."""

    async def intent_of_a_model(classifier_prompt: str, text: str, intent: str, policy: Json) -> Json:
        """Ask the model of `[policy]`: the prompt is its system message, and the query is the user's."""
        messages = [{"role": "system", "content": classifier_prompt}, {"role": "user", "content": text}]
        completion = await complete(messages, policy)
        said = named_intent(intents, completion.text)
        words = f"Right: {said}." if said == intent else f"Wrong: the query was taken for {said}."
        if said == UNKNOWN:
            words = f"Wrong: the answer {completion.text[:80]!r} names no intent of the list."
        if said != intent:
            words += f" Its intent is {intent}."
        told = {"feedback": words, "predicted": said, "expected": intent}
        return result(told, completion.usage, {"type": "llm_response", "text": completion.text})

    return intent_of_a_model


def result(told: Json, usage: Json, event: Json) -> Json:
    """Return the result of a rollout, scored by the true intent only; `told` is its feedback as text and as details."""
    score = float(told["predicted"] == told["expected"])
    trace = {"event_history": [event]}
    return {"score": score, "objectives": {"accuracy": score}, "feedback": told, "usage": usage, "trace": trace}


def answer_feedback(answer: Answer, intent: str) -> Json:
    """Return the feedback on a classification by the offline policy, as text and as details."""
    details: Json = {"predicted": answer.intent, "expected": intent}
    if not answer.matches:
        return {"feedback": "Wrong: the prompt lists no intent that is known.", **details}
    first, expected = answer.matches[0], answer.match(intent)
    details["nearest"] = first.nearest
    if first.intent != intent:
        words = f"Wrong: the query was taken for {first.intent} because of {first.nearest!r} ({first.similarity})."
        if expected is None:
            return {"feedback": f"{words} Its intent is {intent}, which the prompt does not list.", **details}
        near = f"the nearest guidance there is {expected.nearest!r} ({expected.similarity})"
        return {"feedback": f"{words} Its intent is {intent}; {near}.", **details}
    words = f"Right: {first.intent} ({first.similarity}), because of {first.nearest!r}."
    if len(answer.matches) > 1:
        second = answer.matches[1]
        details |= {"runner_up": second.intent, "lead": round(first.similarity - second.similarity, 4)}
        words += f" The next one is {second.intent} ({second.similarity})."
    return {"feedback": words, **details}


def reading_feedback(reading: Reading, intent: str) -> Json:
    """Return the feedback on a classification by the small model, as text and as details."""
    said, share = reading.intent, reading.shares[reading.intent]
    words = f"Right: {said} ({share})."
    if said != intent:
        words = f"Wrong: the model answered {said} ({share}). The intent is {intent}"
        words += f" ({reading.shares[intent]})." if intent in reading.shares else "."
    return {"feedback": words, "predicted": said, "expected": intent, "shares": reading.shares}


def named_intent(intents: Intents, said: str) -> str:
    """Return the intent that a model's answer names: the first one, or the longest of several at one position."""
    found = [(match.start(), -len(intent), intent) for intent in intents if (match := _find(intent, said))]
    return min(found)[2] if found else UNKNOWN


def _find(intent: str, said: str) -> re.Match[str] | None:
    return re.search(rf"(?<!\w){re.escape(intent.rstrip('?'))}(?!\w)", said, flags=re.IGNORECASE)


# How many rollouts run at once. The offline policy keeps one core busy.
POLICIES = {"offline": (offline, 1), "smollm2": (smollm2, 8), "llm": (llm, 64)}


def main() -> None:
    """Serve the task on loopback until the process ends."""
    parser = arguments(__doc__, "smollm2", has_log=False)
    # Only the option selects the data, not an environment variable: both data sets use the same task ids.
    parser.add_argument("--data", type=Path, metavar="DIR", help="has train.csv and test.csv; the sample without it")
    parser.add_argument("--train-per-intent", type=int, default=10, metavar="N", help="rows of --data that are served")
    parser.add_argument("--test-per-intent", type=int, default=20, metavar="N", help="rows of --data that are served")
    args = parser.parse_args()
    if args.policy == "smollm2" and args.data:
        parser.error("--policy smollm2 serves the sample: leave --data out")
    data: Data = load_real(args.data, args.train_per_intent, args.test_per_intent) if args.data else load_sample()
    if args.policy == "smollm2":
        data = only_intents(data, INTENTS)
    function, jobs = POLICIES[args.policy]
    about = f"Name the intent of a bank customer's query, one of {len(data.intents)}."
    named = {"name": "banking77", "description": about, "labels": ["intent"], "jobs": jobs}
    rows = [query._asdict() for query in data.queries.values()]
    serve_function(function(data.intents), rows, {FIELD: seed_prompt(data.intents)}, args, **named)


if __name__ == "__main__":
    main()
