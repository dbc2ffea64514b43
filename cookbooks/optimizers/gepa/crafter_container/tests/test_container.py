"""The container: its metadata, its errors, and the record of a rollout."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crafter_container.container import FIELD, SEED_PROMPT, build
from crafter_container.episodes import WorkerPool
from fastapi.testclient import TestClient


@pytest.fixture(scope="module")
def stage() -> Iterator[WorkerPool]:
    made = WorkerPool(1)
    yield made
    made.close()


@pytest.fixture
def client(stage: WorkerPool, tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(build(stage, argparse.Namespace(policy="offline", log=tmp_path / "bill"))) as made:
        yield made


def request(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 (any part of the request)
    body = {"rollout_id": "r-1", "submission_mode": "sync", "candidate": {FIELD: SEED_PROMPT}}
    return {**body, "task": {"task_id": "train:0"}, "policy": {}, **changes}


def test_the_splits_have_no_world_in_common(client: TestClient) -> None:
    splits = client.get("/taskset").json()["splits"]
    assert not set(splits["train"]) & set(splits["test"])
    rows = client.post("/taskset/tasks", json={"split": "train", "task_ids": splits["train"][:2]}).json()["tasks"]
    assert rows[1] == {"task_id": "train:1", "split": "train", "seed": 1, "steps": 500}


def test_a_rollout_has_a_score_feedback_and_no_cost(client: TestClient, tmp_path: Path) -> None:
    record = client.post("/rollouts", json=request()).json()
    details = record["actionable_side_info"]
    assert record["reward_info"]["outcome_reward"] == len(details["achievements"]) > 0
    assert [score["objective"] for score in record["objective_scores"]] == ["achievements", "survival"]
    assert details["feedback"].startswith(f"{len(details['achievements'])} of 22 achievements")
    assert record["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost_usd": 0.0}
    assert record["summary"]["seed"] == 0
    assert len((tmp_path / "bill").read_text().splitlines()) == 1


@pytest.mark.parametrize("wrong", [{"task": {"task_id": "train:100"}}, {"task": {}}, {"candidate": {}}])
def test_invalid_rollouts_are_refused(client: TestClient, wrong: dict[str, Any]) -> None:
    assert client.post("/rollouts", json=request(**wrong)).status_code == 422


def test_the_calls_of_a_model_are_bounded(stage: WorkerPool) -> None:
    with TestClient(build(stage, argparse.Namespace(policy="llm", log=None))) as client:
        reply = client.post("/rollouts", json=request(policy={"model": "m", "config": {"max_calls": 1000}}))
    assert reply.status_code == 422
    assert "max_calls" in reply.json()["detail"]
