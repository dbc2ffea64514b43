"""Texts for people and models: the question of a task, the parsing of an answer, and the feedback on a rollout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tblite_container.sandbox import Outcome, Verdict
from tblite_container.tasks import Task

Json = dict[str, Any]

ASKED = """\
{instruction}

Files: {files}
Example:
{example}

Answer with one shell pipeline and nothing else. It may read {{input}}, which stands for the names of all files, and
prints the result to standard output. It is judged on other files of the same kind."""


def task_question(task: Task) -> str:
    """Return the question of a task for a model."""
    return ASKED.format(
        instruction=task.instruction, files=", ".join(task.files), example=format_example(task.example())
    )


def pipeline_of(text: str) -> str | None:
    """Return the pipeline in a model's answer: the fenced text, or else its last line."""
    fenced = re.search(r"```[a-z]*\n(.*?)```", text, flags=re.DOTALL)
    if fenced:
        return fenced[1].strip() or None
    lines = [line.strip().strip("`").removeprefix("$ ") for line in text.strip().splitlines()]
    return lines[-1] if lines and lines[-1] else None


def format_example(example: Json) -> str:
    """Return an example as text."""
    inputs = [f"{name} holds:\n{text}" for name, text in example["input"].items()]
    return "".join([*inputs, f"The output must be:\n{example['output']}"]).rstrip("\n")


def feedback(
    source: str, pipeline: str | None, example: Json, tried: Outcome | None, verdicts: Sequence[Verdict]
) -> str:
    """Return the feedback on a task."""
    if pipeline is None or tried is None:
        why = "Failed: no recipe of the prompt is near enough to the instruction, so nothing was run."
        return f"{why}\n{format_example(example)}"
    failed = [verdict for verdict in verdicts if not verdict.passed]
    told = f"{source[:1].upper()}{source[1:]} gave the pipeline `{pipeline}`."
    if verdicts and not failed:
        return f"Solved: all {len(verdicts)} hidden checks passed. {told}"
    parts = [f"Failed: {len(failed)} of {len(verdicts)} hidden checks failed. {told}"]
    if tried.problem:
        parts.append(f"On the example it was ended: {tried.problem}.")
    elif tried.stdout == example["output"]:
        parts.append("It does print the right output for the example, so it is not general enough.")
    else:
        parts.append(f"For the example it printed:\n{tried.stdout[:600] or '(nothing)'}")
    if tried.stderr:
        parts.append(f"Its errors: {tried.stderr[:300]}")
    reasons = sorted({f"{verdict.case}: {verdict.message}" for verdict in failed if verdict.message})
    parts.append(f"Checks that failed: {'; '.join(reasons[:6])}.")
    return "\n".join([*parts, format_example(example)])
