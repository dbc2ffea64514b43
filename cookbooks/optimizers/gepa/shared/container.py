"""The wiring of a container: a cookbook brings its rows, its texts and what a rollout does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fastapi import FastAPI, HTTPException
from synth_containers import Container

from shared.serving import bill

Json = dict[str, Any]

FREE: Json = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost_usd": 0.0}
"""The usage of a policy that calls no model: no token is used, and that this costs nothing is known."""


class Row(Protocol):
    """A row of a task."""

    @property
    def task_id(self) -> str:
        """Its name, such as `train:3`."""

    @property
    def split(self) -> str:
        """The split that it belongs to."""

    def task(self) -> Json:
        """Return what the optimizer may see of it."""


AnyRow = TypeVar("AnyRow", bound=Row)


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
    """Return a program of two modules: the prompt, which may change, and the question that is put to it."""
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


def application(
    container: Container,
    rows: Mapping[str, AnyRow],
    rollout: Callable[[Json, AnyRow, str], Awaitable[Json]],
    *,
    program: Json,
    task_info: Json,
    taskset: Json,
    log: Path | None = None,
) -> FastAPI:
    """Return the application of a container whose rollouts get the request, the row and the prompt.

    A rollout of an unknown row or without the prompt is refused. Every other one is a line of the log.
    """
    (field,) = program["seed_candidate"]
    splits: dict[str, list[str]] = {}
    for name, row in rows.items():
        splits.setdefault(row.split, []).append(name)

    def row_of(task_id: object) -> AnyRow:
        if not isinstance(task_id, str) or task_id not in rows:
            raise HTTPException(status_code=422, detail=f"unknown task_id {task_id!r}")
        return rows[task_id]

    async def checked(request: Json) -> Json:
        row = row_of((request.get("task") or {}).get("task_id"))
        prompt = (request.get("candidate") or {}).get(field)
        if not isinstance(prompt, str):
            raise HTTPException(status_code=422, detail=f"candidate.{field} is missing")
        bill(log, request)
        return await rollout(request, row, prompt)

    container.program(lambda: program)
    container.task_info(lambda: task_info)
    container.taskset(lambda: {"splits": splits, **taskset})
    container.taskset_tasks(lambda request: {"tasks": [row_of(name).task() for name in request["task_ids"]]})
    container.rollout(checked)
    app: FastAPI = container.fastapi()
    return app
