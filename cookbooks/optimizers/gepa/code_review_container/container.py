"""The task: review small Python changes and report the lines with defects. The bridge serves the function.

The defects were planted, so that their lines are known; they do not leave the container before a review is scored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from shared.bridge import serve_function
from shared.rows import Json
from shared.serving import arguments

from code_review_container.defects import CLASSES
from code_review_container.policy import ANSWER_FORMAT, ModelPolicy, OfflinePolicy, Review
from code_review_container.tasks import Defect, Row, load_rows
from code_review_container.verifier import Spot, Verdict, judge

FIELD = "review_prompt"
SEED_PROMPT = "Review the code change and report problems."
DESCRIPTION = (
    "Report the lines of a small Python change that hold a defect, and no others. The score is F1 over the lines with "
    f"defects: a comment is right within one line of a defect, once. Classes of defects: {', '.join(CLASSES)}. "
    "Write a checklist: one kind of defect on each line, in ordinary words. "
)
PREMISES = {
    "offline": (
        "The policy is a linter, not a model. Each line of the prompt is matched to the documented rules of the linter "
        "that it is most similar to, and switches them on. A line that begins with `Do not report` switches the rules "
        "off that it is most similar to. A rule that several lines reach follows the most similar line. A line about "
        "nothing in particular reaches no rule."
    ),
    "llm": f"The policy is a model that reads the prompt, then the change, and then: {ANSWER_FORMAT}",
}


def reviewer(rows: Mapping[str, Row], policy_name: str) -> Callable[..., Any]:
    """Return the function of a policy."""
    chosen = OfflinePolicy(rows.values()) if policy_name == "offline" else ModelPolicy()

    async def review(review_prompt: str, task_id: str, policy: Json) -> Json:
        """Review a change and score the review by the planted defects."""
        row = rows[task_id]
        return result(row, await chosen.review(review_prompt, row, policy))

    return review


def result(row: Row, review: Review) -> Json:
    """Score a review by the planted defects only."""
    verdict = judge(review.comments, row.defects)
    scores = {"f1": verdict.f1, "precision": verdict.precision, "recall": verdict.recall}
    scores |= {f"f1_{name}": value for name, value in verdict.f1_by_class().items()}
    told: Json = {
        "feedback": feedback(row, verdict),
        "missed": [{"line": defect.line, "class": defect.kind.defect_class} for defect in verdict.missed],
        "false_alarms": [spot[0].line for spot in verdict.false_alarms],
    }
    trace = {"event_history": review.history}
    return {"score": verdict.f1, "objectives": scores, "feedback": told, "usage": review.usage, "trace": trace}


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


def main() -> None:
    """Serve the task on loopback until the process ends."""
    args = arguments(__doc__, has_log=False).parse_args()
    found = load_rows()
    rows = [{**row.task(), "defects": [[each.line, each.kind.name] for each in row.defects]} for row in found.values()]
    about = DESCRIPTION + PREMISES[args.policy]
    task = {"name": "code_review", "description": about, "labels": ["defects"], "jobs": 64}
    serve_function(reviewer(found, args.policy), rows, {FIELD: SEED_PROMPT}, args, **task)


if __name__ == "__main__":
    main()
