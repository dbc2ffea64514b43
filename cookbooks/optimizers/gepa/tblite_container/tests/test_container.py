"""The container follows the contract, with scores of the hidden checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from shared import llm
from tblite_container.container import FIELD, SEED_PROMPT, build, main, refusal
from tblite_container.jail import KINDS, LANDLOCK, LIMITS, NAMESPACES
from tblite_container.sandbox import AUTO, Sandbox
from tblite_container.tasks import load_tasks

Json = dict[str, Any]
TASKS = load_tasks()
RIGHT = "- remove repeated lines, keep the order: awk '!seen[$0]++' {input}"


@pytest.fixture(scope="module")
def client(sandbox: Sandbox) -> Iterator[TestClient]:
    with TestClient(build(TASKS, sandbox, "offline")) as made:
        yield made


def request(task_id: str, prompt: str) -> Json:
    candidate = {FIELD: prompt}
    task = {"task_id": task_id}
    policy = {"provider": "offline", "model": "any"}
    return {"rollout_id": f"r-{task_id}-{len(prompt)}", "submission_mode": "sync", "candidate": candidate} | {
        "task": task,
        "policy": policy,
    }


def rollout(client: TestClient, task_id: str, prompt: str) -> Json:
    reply = client.post("/rollouts", json=request(task_id, prompt))
    assert reply.status_code == 200, reply.text
    record: Json = reply.json()
    return record


def test_the_taskset_is_served(client: TestClient) -> None:
    assert client.get("/taskset").json()["splits"]["train"][0] == "train:0"
    reply = client.post("/taskset/tasks", json={"split": "train", "task_ids": ["train:0"], "filters": {}})
    assert set(reply.json()["tasks"][0]) == {"task_id", "split", "seed", "instruction", "files", "example"}
    assert client.post("/taskset/tasks", json={"split": "x", "task_ids": ["x:0"], "filters": {}}).status_code == 422
    assert client.get("/program").json()["seed_candidate"] == {FIELD: SEED_PROMPT}


def test_a_correct_recipe_solves_a_task(client: TestClient, sandbox: Sandbox) -> None:
    record = rollout(client, "test:6", RIGHT)
    assert record["reward_info"]["outcome_reward"] == 1.0
    assert record["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost_usd": 0.0}
    told = record["actionable_side_info"]
    assert told["feedback"].startswith("Solved: all 9 hidden checks passed.")
    assert told["sandbox"] == sandbox.kind


def test_a_wrong_recipe_gets_the_expected_output_as_feedback(client: TestClient) -> None:
    record = rollout(client, "train:6", "- remove repeated lines: sort -u {input}")
    told = record["actionable_side_info"]
    assert record["reward_info"]["outcome_reward"] == 0.0
    assert {score["objective"]: score["value"] for score in record["objective_scores"]}["checks_passed"] > 0.5
    assert "ordinary: the output differs from the right one" in told["feedback"]
    assert f"The output must be:\n{TASKS['train:6'].example()['output']}".rstrip() in told["feedback"]
    assert told["failed_checks"] == ["output_is_right"]


def test_without_a_recipe_nothing_is_run(client: TestClient) -> None:
    told = rollout(client, "train:0", "Do your best.")["actionable_side_info"]
    assert told["pipeline"] is None
    assert told["feedback"].startswith("Failed: no recipe of the prompt is near enough")


def test_the_text_of_the_prompt_is_not_rewarded(client: TestClient) -> None:
    prompt = f"{RIGHT.partition(':')[0]}: true {{input}}\nawk '!seen[$0]++'"
    assert rollout(client, "test:6", prompt)["reward_info"]["outcome_reward"] == 0.0


def test_rollouts_are_reproducible(client: TestClient) -> None:
    first, second = (client.post("/rollouts", json=request("train:6", RIGHT) | {"rollout_id": name}) for name in "ab")
    volatile = {"rollout_id", "created_at", "updated_at", "trace_correlation_id"}
    keep = [{key: value for key, value in reply.json().items() if key not in volatile} for reply in (first, second)]
    assert keep[0] == keep[1]


def test_unknown_tasks_and_fields_are_refused(client: TestClient) -> None:
    assert client.post("/rollouts", json=request("train:999", RIGHT)).status_code == 422
    bare = request("train:0", RIGHT) | {"candidate": {}}
    assert client.post("/rollouts", json=bare).status_code == 422


def test_a_model_can_write_the_pipeline(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    async def complete(messages: list[Json], config: Json) -> llm.Completion:
        seen.append((messages, config))
        return llm.Completion("```\nawk '!seen[$0]++' {input}\n```", {"prompt_tokens": 7, "completion_tokens": 5})

    monkeypatch.setattr(llm, "complete", complete)
    with TestClient(build(TASKS, sandbox, "llm")) as client:
        record = rollout(client, "test:6", "Solve it.")
    assert record["reward_info"]["outcome_reward"] == 1.0
    assert record["usage"]["prompt_tokens"] == 7
    assert seen[0][0][0] == {"role": "system", "content": "Solve it."}
    assert seen[0][1]["model"] == "any"


@pytest.mark.parametrize("policy", ["offline", "llm"])
def test_limits_alone_must_be_requested(policy: str) -> None:
    assert "--sandbox limits" in refusal(AUTO, LIMITS, policy)
    assert refusal(AUTO, NAMESPACES, policy) == ""
    assert [refusal(kind, kind, policy) for kind in KINDS] == ["", "", ""]


def test_landlock_with_a_model_must_be_requested() -> None:
    assert "--sandbox landlock" in refusal(AUTO, LANDLOCK, "llm")
    assert refusal(AUTO, LANDLOCK, "offline") == ""


@pytest.mark.parametrize("policy", ["offline", "llm"])
def test_the_container_does_not_start_with_unrequested_limits(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Weak:
        kind = LIMITS

        def __init__(self, wanted: str) -> None:
            assert wanted == AUTO

        def __enter__(self) -> Weak:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def serve(*_: object) -> None:
        raise AssertionError("it must not serve")

    monkeypatch.setattr("tblite_container.container.Sandbox", Weak)
    monkeypatch.setattr("tblite_container.container.serve", serve)
    monkeypatch.setattr("sys.argv", ["container.py", "--policy", policy])
    with pytest.raises(SystemExit, match="--sandbox limits runs them anyway"):
        main()
