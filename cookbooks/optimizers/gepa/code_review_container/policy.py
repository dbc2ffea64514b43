"""The two policies: `offline` follows the prompt with a real linter, and `llm` calls a model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.llm import complete

from code_review_container.checklist import rules_of
from code_review_container.linter import Finding, lint
from code_review_container.tasks import Row, new_lines
from code_review_container.verifier import Comment

ANSWER_FORMAT = (
    "Comment only on lines that the change adds; they are marked with +. Answer with a JSON list and nothing else, one "
    'object for each problem: {"line": the number before the line, "problem": "what is wrong, in a sentence"}. '
    "An empty list means that nothing is wrong."
)


@dataclass(frozen=True)
class Review:
    """The comments on a change, with their usage and events."""

    comments: tuple[Comment, ...]
    usage: dict[str, int | float]
    history: list[dict[str, Any]] = field(default_factory=list)


class OfflinePolicy:
    """Reviews with the linter: the lines of the prompt enable and disable its rules. No model is called.

    All rules run once over all changes; each review selects from their findings.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        """Lint the new files of all rows."""
        known = list(rows)
        found = lint(row.new for row in known)
        self._findings = {
            row.task_id: findings_on_added_lines(row, findings) for row, findings in zip(known, found, strict=True)
        }
        rules_of("")

    async def review(self, prompt: str, row: Row, config: Mapping[str, Any]) -> Review:  # noqa: ARG002 (no model)
        """Return the findings of the rules that the prompt enables."""
        reasons = rules_of(prompt)
        comments = tuple(
            Comment(finding.line, finding.message, reasons[finding.code])
            for finding in self._findings[row.task_id]
            if finding.code in reasons
        )
        # No model is called, so the usage and the cost are known to be zero.
        usage: dict[str, int | float] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost_usd": 0.0}
        return Review(comments, usage, [{"type": "linter_run", "rules": sorted(reasons)}])


class ModelPolicy:
    """Reviews with a model that reads the prompt and the change."""

    async def review(self, prompt: str, row: Row, config: Mapping[str, Any]) -> Review:
        """Return the comments of the model; an answer that cannot be parsed has none."""
        messages = [
            {"role": "system", "content": prompt},
            {"role": "user", "content": f"{numbered(row)}\n\n{ANSWER_FORMAT}"},
        ]
        completion = await complete(messages, config)
        history: list[dict[str, Any]] = [
            {"type": "llm_request", "messages": messages},
            {"type": "llm_response", "text": completion.text},
        ]
        return Review(tuple(read_comments(completion.text)), dict(completion.usage), history)


def findings_on_added_lines(row: Row, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings on lines that the change added."""
    lines = new_lines(row.diff)
    return tuple(finding for finding in findings if finding.line <= len(lines) and lines[finding.line - 1][1])


def numbered(row: Row) -> str:
    """Return the new file with line numbers, and a mark at each added line."""
    lines = [
        f"{number:>4} {'+' if is_added else ' '} {text}"
        for number, (text, is_added) in enumerate(new_lines(row.diff), 1)
    ]
    return "\n".join([f"Change to {row.path}:", *lines])


def read_comments(answer: str) -> list[Comment]:
    """Parse the comments in the answer of a model."""
    shown = re.search(r"\[.*\]", answer, flags=re.DOTALL)
    try:
        entries = json.loads(shown[0]) if shown else []
    except ValueError:
        return []
    return [
        Comment(entry["line"], str(entry.get("problem", "")))
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("line"), int)
    ]
