"""A container of `create_reference_app`: taskset dialect with synth-containers 0.4.6, dataset dialect with 0.2.0."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from fastapi import FastAPI, HTTPException
from offline_task import FAMILY, Json, now, program, record, row_of, row_of_id, rows_info
from serving import Faults, arguments, faults_from_arguments, serve
from synth_containers import create_reference_app
from synth_containers.nouns import ExecutionRecord, Outcome, TaskDefinition, TaskInstance, TraceEvent, Trajectory
from synth_containers.reference_runtime import ReferenceManagedRuntime

DATASET_DIALECT = version("synth-containers") == "0.2.0"


class Garden:
    """Executes the rollouts of the reference runtime."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.records: dict[str, ExecutionRecord] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def submit(self, request: Json) -> ExecutionRecord:
        """Run a rollout, or start it if the request is async."""
        fault = await self.faults.apply_fault()
        rollout_id = str(request.get("rollout_id"))
        row = request.get("dataset_row" if DATASET_DIALECT else "task") or {}
        if request.get("submission_mode") != "async":
            return self.finish(request, rollout_id, row, fault)
        if fault == "refuse-async":
            raise HTTPException(status_code=422, detail="only sync is supported")
        self.records[rollout_id] = execution(request, rollout_id, row, status="running", success="running")

        async def later() -> None:
            await asyncio.sleep(0.01)
            self.finish(request, rollout_id, row, fault)

        task = asyncio.create_task(later())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return self.records[rollout_id]

    def finish(self, request: Json, rollout_id: str, row: Json, fault: str | None) -> ExecutionRecord:
        """Store the whole record and return it."""
        whole = row_of(str(row.get("split") or "train"), int(row.get("seed") or 0))
        done = record(rollout_id, whole, request.get("candidate") or {}, fault)
        ran = row_of("train", 0) if fault == "wrong-row" else whole
        self.records[rollout_id] = execution(
            request,
            rollout_id,
            ran,
            status=done["status"],
            success=done["success_status"],
            trajectory=Trajectory(events=[TraceEvent(event_type="llm_response", payload={"text": "advice"})]),
            outcome=Outcome(reward=done["reward_info"]["outcome_reward"]),
            summary=done["summary"],
            usage=done["usage"],
            metadata={"actionable_side_info": done["actionable_side_info"], "candidate": request.get("candidate")},
        )
        return self.records[rollout_id]

    async def read(self, rollout_id: str) -> ExecutionRecord | None:
        """Return a record by its id."""
        return self.records.get(rollout_id)


def execution(
    request: Json, rollout_id: str, row: Json, *, status: str, success: str, **rest: object
) -> ExecutionRecord:
    """Return a record with the parts that every record has."""
    return ExecutionRecord(
        execution_id=rollout_id,
        trace_correlation_id=str(request.get("trace_correlation_id") or rollout_id),
        status=status,
        success_status=success,
        created_at=now(),
        updated_at=now(),
        task=TaskDefinition(task_id=FAMILY, task_name="Garden advice"),
        task_instance=TaskInstance(
            task_instance_id=str(row.get("task_id") or ""),
            task_id=FAMILY,
            split=row.get("split"),
            seed=row.get("seed"),
        ),
        **rest,
    )


def tasks_reply(request: Json) -> Json:
    """Return the rows in the taskset dialect."""
    rows = [row_of_id(task_id) for task_id in request.get("task_ids") or []]
    if None in rows:
        raise HTTPException(status_code=422, detail="unknown task id")
    return {"tasks": rows}


def dataset_reply(request: Json) -> Json:
    """Return the rows in the dataset dialect."""
    return {"rows": [row_of(str(request.get("split")), seed) for seed in request.get("seeds") or []]}


def build(faults: Faults) -> FastAPI:
    """Return the application."""
    runtime = ReferenceManagedRuntime.counter_default()
    garden = Garden(faults)
    runtime.program = program
    runtime.submit_rollout = garden.submit
    runtime.get_execution = garden.read
    runtime.get_execution_state = garden.read
    if DATASET_DIALECT:
        runtime.dataset_info = lambda: rows_info("dataset_id")
        runtime.dataset_rows = dataset_reply
    else:
        runtime.taskset_info = lambda: rows_info("taskset_id")
        runtime.taskset_tasks = tasks_reply
    return create_reference_app(runtime, title="garden")


if __name__ == "__main__":
    args = arguments(__doc__)
    serve(build(faults_from_arguments(args)), args)
