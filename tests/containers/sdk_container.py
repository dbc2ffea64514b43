"""A container of the authoring kit of synth-containers 0.4.6: taskset dialect, sync and async."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException
from offline_task import Json, program, record, row_of_id, rows_info
from serving import Faults, arguments, faults_from_arguments, serve
from synth_containers import Container


def build(faults: Faults) -> FastAPI:
    """Return the application."""
    container = Container("garden", description="offline garden questions", default_submission_mode="async")

    def task_info() -> Json:
        return {"task": {"task_id": "garden.advice", "description": "Give good advice."}}

    def tasks(request: Json) -> Json:
        rows = [row_of_id(task_id) for task_id in request.get("task_ids") or []]
        if None in rows:
            raise HTTPException(status_code=422, detail="unknown task id")
        return {"tasks": rows, "metadata": {}}

    async def rollout(payload: Json) -> Json:
        fault = await faults.apply_fault()
        row = row_of_id(str((payload.get("task") or {}).get("task_id"))) or {}
        return record(str(payload["rollout_id"]), row, payload.get("candidate") or {}, fault)

    container.program(program)
    container.task_info(task_info)
    container.taskset(lambda: rows_info("taskset_id"))
    container.taskset_tasks(tasks)
    container.rollout(rollout)
    return container.fastapi()


if __name__ == "__main__":
    args = arguments(__doc__)
    serve(build(faults_from_arguments(args)), args)
