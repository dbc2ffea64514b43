"""A synth-container whose task is to review small Python changes and to report the lines with defects.

The defects were planted, so that their lines are known; they do not leave the container before a review is scored.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fastapi import FastAPI

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from shared.container import application, prompt_program, rollout_record
from shared.rows import Json
from shared.serving import arguments, serve

from code_review_container.defects import CLASSES
from code_review_container.policy import ANSWER_FORMAT, ModelPolicy, OfflinePolicy, Review
from code_review_container.tasks import Defect, Row, load_rows
from code_review_container.verifier import Spot, Verdict, judge

FAMILY = "code_review"
FIELD = "review_prompt"
SEED_PROMPT = "Review the code change and report problems."


PROGRAM = prompt_program(
    FAMILY,
    FIELD,
    SEED_PROMPT,
    names=("reviewer", "change"),
    question="{diff}\n\n" + ANSWER_FORMAT,
    variables=["diff"],
)
"""The program: the reviewer's prompt, which is mutable, and the change as its input."""


def task_info(policy: str) -> Json:
    """Return the description of the task for a proposer."""
    premises = {
        "offline": [
            "The policy is a linter, not a model. Each line of the prompt is matched to the documented rules of the "
            "linter that it is most similar to, and switches them on.",
            "A line that begins with `Do not report` switches the rules off that it is most similar to.",
            "A rule that several lines reach follows the most similar line. A line about nothing in particular reaches "
            "no rule.",
        ],
        "llm": ["The policy is a model that reads the prompt, then the change."],
    }
    return {
        "task": {
            "task_id": FAMILY,
            "name": "Code review",
            "description": "Report the lines of a small Python change that hold a defect, and no others.",
        },
        "scoring": "F1 over the lines with defects: a comment is right within one line of a defect, once.",
        "defect_classes": list(CLASSES),
        "proposal_guidance": {
            "premises": premises[policy],
            "constraints": ["Write a checklist: one kind of defect on each line, in ordinary words."],
        },
    }


def quoted(text: str) -> str:
    """Return a text on one line in quotes, without quotes inside."""
    return '"{}"'.format(" ".join(text.replace('"', "'").split()))


def feedback(row: Row, verdict: Verdict) -> str:
    """Return the feedback on a review: defects found, defects missed, and false alarms."""
    code = row.new.splitlines()

    def shown(line: int) -> str:
        return f"line {line} `{code[line - 1].strip()}`" if 0 < line <= len(code) else f"line {line}"

    def said(spot: Spot) -> str:
        reasons = [f" because of {quoted(comment.because)}" if comment.because else "" for comment in spot]
        return " and ".join(quoted(comment.message) + reason for comment, reason in zip(spot, reasons, strict=True))

    def meant(defect: Defect) -> str:
        return f"{defect.kind.what} ({defect.kind.why})"

    total = len(verdict.found) + len(verdict.missed)
    lines = [f"{len(verdict.found)} of {total} defects found, {len(verdict.false_alarms)} false alarms."]
    lines += [f"Found {shown(defect.line)}: {meant(defect)}. Said: {said(spot)}." for defect, spot in verdict.found]
    lines += [f"Missed {shown(defect.line)}: {meant(defect)}." for defect in verdict.missed]
    lines += [f"False alarm at {shown(spot[0].line)}. Said: {said(spot)}." for spot in verdict.false_alarms]
    return "\n".join(lines)


def record_of(rollout_id: str, row: Row, candidate: Json, review: Review) -> Json:
    """Score a review by the planted defects only."""
    verdict = judge(review.comments, row.defects)
    scores = {"f1": verdict.f1, "precision": verdict.precision, "recall": verdict.recall}
    scores |= {f"f1_{name}": value for name, value in verdict.f1_by_class().items()}
    details: Json = {
        "missed": [{"line": defect.line, "class": defect.kind.defect_class} for defect in verdict.missed],
        "false_alarms": [spot[0].line for spot in verdict.false_alarms],
    }
    return rollout_record(
        rollout_id,
        row,
        verdict.f1,
        family=FAMILY,
        succeeded=verdict.f1 == 1.0,
        objectives=scores,
        told={"feedback": feedback(row, verdict), **details},
        usage=review.usage,
        events=review.history,
        reward_details=scores,
        metadata={"candidate": candidate},
    )


def build(rows: dict[str, Row], policy_name: str = "offline", log: Path | None = None) -> FastAPI:
    """Return the application."""
    policy = OfflinePolicy(rows.values()) if policy_name == "offline" else ModelPolicy()

    async def rollout(request: Json, row: Row, prompt: str) -> Json:
        review = await policy.review(prompt, row, request.get("policy") or {})
        return record_of(str(request["rollout_id"]), row, request["candidate"], review)

    texts = {"program": PROGRAM, "task_info": task_info(policy_name), "taskset": {"taskset_id": FAMILY}}
    return application("code-review", "reviews small changes", rows, rollout, **texts, log=log)


def main() -> None:
    """Serve the container on loopback until the process ends."""
    args = arguments(__doc__).parse_args()
    serve(build(load_rows(), args.policy, args.log), args)


if __name__ == "__main__":
    main()
