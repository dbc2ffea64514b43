"""Hand-written FastAPI containers like those of the public cookbooks; the three dialects differ in a few lines."""

from __future__ import annotations

import asyncio
import json

from fastapi import FastAPI, HTTPException, Request, Response
from offline_task import Json, now, program, record, row_of, row_of_id, rows_info
from serving import Faults


class HandwrittenContainer:
    """The routes of the application and its stored async rollouts."""

    def __init__(self, dialect: str, mode: str, faults: Faults) -> None:
        self.dialect = dialect
        self.modes = {"blocking": ["blocking"], "async": ["async"], "both": ["blocking", "async"]}[mode]
        self.faults = faults
        self.records: dict[str, Json] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def app(self) -> FastAPI:
        """Return the application."""
        app = FastAPI()
        app.add_api_route("/health", lambda: {"status": "ok"}, methods=["GET"])
        app.add_api_route("/metadata", self.metadata, methods=["GET"])
        app.add_api_route("/program", program, methods=["GET"])
        if self.dialect != "taskset":
            app.add_api_route("/dataset", lambda: rows_info("dataset_id"), methods=["GET"])
            app.add_api_route("/dataset/rows", self.dataset_rows, methods=["POST"], response_model=None)
        if self.dialect != "dataset":
            app.add_api_route("/taskset", lambda: rows_info("taskset_id"), methods=["GET"])
            app.add_api_route("/taskset/tasks", self.taskset_tasks, methods=["POST"], response_model=None)
        for path in ("/rollout", "/rollouts"):
            app.add_api_route(path, self.rollout, methods=["POST"], response_model=None)
        if "async" in self.modes:
            for path in ("/rollouts/{rollout_id}", "/rollouts/{rollout_id}/state"):
                app.add_api_route(path, self.read, methods=["GET"], response_model=None)
            app.add_api_route("/rollouts/{rollout_id}/terminate", self.terminate, methods=["POST"], response_model=None)
        return app

    def metadata(self) -> Json:
        """Return the metadata of the contract."""
        gepa = {"version": "synth_optimizers.gepa.v2", "program_route": "/program", "rollout_route": "/rollout"}
        if self.dialect != "taskset":
            gepa |= {"dataset_route": "/dataset", "dataset_rows_route": "/dataset/rows"}
        if self.dialect != "dataset":
            gepa |= {"taskset_route": "/taskset", "taskset_tasks_route": "/taskset/tasks"}
        return {
            "runtime": {"runtime_id": "garden", "name": "garden, written by hand"},
            "capabilities": {"contract_version": "container_contract.v1", "rollout_modes": self.modes},
            "metadata": {"optimizer_contracts": {"gepa": gepa}},
        }

    async def dataset_rows(self, request: Request) -> Json:
        """Return rows by row number."""
        body = await request.json()
        return {"rows": [row_of(body.get("split", "train"), seed) for seed in body.get("seeds", [])]}

    async def taskset_tasks(self, request: Request) -> Json:
        """Return rows by task id."""
        body = await request.json()
        rows = [row_of_id(task_id) for task_id in body.get("task_ids", [])]
        if None in rows:
            raise HTTPException(status_code=422, detail="unknown task id")
        return {"tasks": rows}

    async def rollout(self, request: Request) -> Response:
        """Run a rollout, or start it."""
        body = await request.json()
        policy = body.get("policy") or {}
        if not (policy.get("provider") and policy.get("model")):
            raise HTTPException(status_code=422, detail="policy.provider and policy.model are required")
        wants_async = body.get("submission_mode") == "async"
        if wants_async and ("async" not in self.modes or self.faults.name == "refuse-async"):
            raise HTTPException(status_code=422, detail="only submission_mode=sync is supported")
        fault = await self.faults.apply_fault()
        done = record(str(body.get("rollout_id")), self.row(body), body.get("candidate") or {}, fault)
        if self.dialect != "taskset":
            # Most cookbooks have no separate field for feedback: it is part of the reward details.
            done["reward_info"]["details"] |= done.pop("actionable_side_info")
        if not wants_async:
            return reply(done)
        return reply(self.begin(done))

    def row(self, body: Json) -> Json:
        """Return the row of a request; if the expected key is missing, return a default row."""
        key = "task" if self.dialect == "taskset" else "dataset_row"
        row = body.get(key) or {"split": "train", "seed": 1}
        return row_of(row.get("split", "train"), row.get("seed", 1))

    def begin(self, done: Json) -> Json:
        """Store a record as running, and replace it by the whole record a little later."""
        rollout_id = done["rollout_id"]
        running = {
            "rollout_id": rollout_id,
            "status": "running",
            "success_status": "running",
            "created_at": now(),
            "updated_at": now(),
            "summary": {},
        }
        self.records[rollout_id] = running

        async def later() -> None:
            await asyncio.sleep(0.01)
            if self.records[rollout_id]["status"] == "running":
                self.records[rollout_id] = done

        task = asyncio.create_task(later())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return running

    async def read(self, rollout_id: str) -> Response:
        """Return a record by its id."""
        if rollout_id not in self.records:
            raise HTTPException(status_code=404, detail=f"unknown_rollout:{rollout_id}")
        return reply(self.records[rollout_id])

    async def terminate(self, rollout_id: str) -> Response:
        """Cancel a rollout that is still running."""
        if rollout_id not in self.records:
            raise HTTPException(status_code=404, detail=f"unknown_rollout:{rollout_id}")
        if self.records[rollout_id]["status"] == "running":
            self.records[rollout_id] |= {"status": "cancelled", "success_status": "failed"}
        return reply(self.records[rollout_id])


def reply(record: Json) -> Response:
    """Return a record as Python serializes it: NaN stays NaN, which is not valid JSON."""
    return Response(json.dumps(record), media_type="application/json")
