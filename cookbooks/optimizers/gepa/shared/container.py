"""The common part of the containers: a cookbook supplies its rows, its texts and its rollout function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException
from synth_containers import Container
from synth_containers.sdk import ObjectiveScore, RolloutResult

from shared.llm import ModelError
from shared.rows import Json, TaskRow
from shared.serving import log_rollout

ZERO_USAGE: Json = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost_usd": 0.0}
"""The usage of a policy that calls no model: zero tokens and a known cost of zero."""


AnyRow = TypeVar("AnyRow", bound=TaskRow)


def prompt_program(
    family: str,
    field: str,
    prompt: str,
    *,
    names: tuple[str, str],
    question: str,
    variables: Sequence[str],
    **about: object,
) -> Json:
    """Return a program of two modules: the mutable prompt, and the question as its input."""
    first: Json = {
        "module_id": names[0],
        "role": "system",
        "content": prompt,
        "mutable": True,
        "candidate_field": field,
    }
    first |= {"template_variables": [], "metadata": {"lever_kind": "system_prompt"}}
    second: Json = {"module_id": names[1], "role": "user", "content": question, "mutable": False, "candidate_field": ""}
    second |= {"template_variables": list(variables), "metadata": {}}
    return {
        "version": "prompt_program.v1",
        "program_id": family,
        "modules": [first, second],
        "target_modules": [{"module_id": names[0], "candidate_field": field}],
        "seed_candidate": {field: prompt},
        "rollout_overlay_schema": {"candidate_fields": [field]},
        "metadata": {"task_id": family, **about},
    }


def rollout_record(
    rollout_id: str,
    row: TaskRow,
    reward: float,
    *,
    family: str,
    succeeded: bool,
    objectives: Mapping[str, float],
    told: Json,
    usage: Json,
    events: list[Json],
    summary: Json | None = None,
    **more: Any,  # noqa: ANN401 (arguments of the record)
) -> Json:
    """Return the record of a rollout; `told` is its feedback as text and as details."""
    record: Json = RolloutResult(
        rollout_id=rollout_id,
        reward=reward,
        task_id=family,
        success_status="succeeded" if succeeded else "failed",
        objective_scores=[ObjectiveScore(name, value) for name, value in objectives.items()],
        actionable_side_info=told,
        summary={"outcome_reward": reward, "seed": row.seed, **(summary or {})},
        usage=usage,
        trace={"event_history": events},
        **more,
    ).to_dict()
    return record


def application(
    name: str,
    description: str,
    rows: Mapping[str, AnyRow],
    rollout: Callable[[Json, AnyRow, str], Awaitable[Json]],
    *,
    program: Json,
    task_info: Json,
    taskset: Json,
    log: Path | None = None,
) -> FastAPI:
    """Return the application of a container; `rollout` gets the request, the row and the prompt.

    A rollout of an unknown row or without the prompt is refused. Every other one is logged as one line.
    """
    container = Container(name, description=description, default_submission_mode="sync")
    (field,) = program["seed_candidate"]
    splits: dict[str, list[str]] = {}
    for task_id, row in rows.items():
        splits.setdefault(row.split, []).append(task_id)

    def row_of(task_id: object) -> AnyRow:
        if not isinstance(task_id, str) or task_id not in rows:
            raise HTTPException(status_code=422, detail=f"unknown task_id {task_id!r}")
        return rows[task_id]

    async def checked(request: Json) -> Json:
        row = row_of((request.get("task") or {}).get("task_id"))
        prompt = (request.get("candidate") or {}).get(field)
        if not isinstance(prompt, str):
            raise HTTPException(status_code=422, detail=f"candidate.{field} is missing")
        log_rollout(log, request)
        try:
            return await rollout(request, row, prompt)
        except ModelError as error:
            raise HTTPException(status_code=error.status_code, detail=error.detail) from error

    container.program(lambda: program)
    container.task_info(lambda: task_info)
    container.taskset(lambda: {"splits": splits, **taskset})
    container.taskset_tasks(lambda request: {"tasks": [row_of(task_id).task() for task_id in request["task_ids"]]})
    container.rollout(checked)
    app: FastAPI = container.fastapi()
    return app
