"""The HTTP interface of the container, with either policy."""

import itertools
import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from code_review_container.tasks import load_rows
from shared.launch import run_server

Json = dict[str, Any]

CONTAINER = Path(__file__).parent.parent / "container.py"


def ask(url: str, body: Json | None = None) -> Json:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 (a loopback address)
    with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310
        document: Json = json.load(reply)
    return document


NAMES = (f"r{number}" for number in itertools.count())
"""Ids of rollouts: a repeated id gets the first record."""


def rollout(task_id: str, prompt: str | None, **policy: object) -> Json:
    candidate = {} if prompt is None else {"review_prompt": prompt}
    body = {"rollout_id": next(NAMES), "submission_mode": "sync", "task": {"task_id": task_id}, "candidate": candidate}
    return {**body, "policy": policy}


def refused(url: str, body: Json) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(url, body)
    with caught.value as error:
        return error.code, error.read().decode()


class Model(BaseHTTPRequestHandler):
    """A stand-in for a model: it finds the first defect of the configured row."""

    answer: ClassVar[str] = "[]"
    seen: ClassVar[list[tuple[str | None, Json]]] = []

    def do_POST(self) -> None:
        """Send the configured answer."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.headers.get("Authorization"), body))
        reply = {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": self.answer}}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        }
        payload = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the base class)
        """Log nothing."""


@contextmanager
def model_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_offline_container_follows_the_contract() -> None:
    with run_server(sys.executable, CONTAINER) as url:
        assert "gepa" in ask(f"{url}/metadata")["metadata"]["optimizer_contracts"]
        assert ask(f"{url}/program")["seed_candidate"] == {
            "review_prompt": "Review the code change and report problems."
        }
        splits = ask(f"{url}/taskset")["splits"]
        assert {name: len(ids) for name, ids in splits.items()} == {"train": 40, "test": 80}
        [task] = ask(f"{url}/taskset/tasks", {"split": "train", "task_ids": ["train:3"]})["tasks"]
        assert task.pop("row_version")
        assert task == load_rows()["train:3"].task()
        record = ask(f"{url}/rollouts", rollout("train:3", "Flag yaml loaded with an unsafe loader."))
        assert 0.0 < record["reward_info"]["outcome_reward"] < 1.0
        assert record["usage"]["cost_usd"] == 0.0
        assert refused(f"{url}/rollouts", rollout("train:99", "Flag."))[0] == 422
        assert refused(f"{url}/rollouts", rollout("train:3", None))[0] == 422


def test_a_model_reviews_with_the_key_of_the_container() -> None:
    row = load_rows()["train:1"]
    Model.answer = json.dumps([{"line": row.defects[0].line, "problem": "wrong"}])
    environ = {"POLICY_API_KEY": "only-for-the-model"}
    with model_server() as address, run_server(sys.executable, CONTAINER, "--policy", "llm", environ=environ) as url:
        record = ask(f"{url}/rollouts", rollout("train:1", "Be strict.", model="some-model", base_url=address))
        failed = ask(f"{url}/rollouts", rollout("train:1", "Be strict."))
    assert (failed["status"], "policy.model is missing" in failed["status_detail"]) == ("failed", True)
    [(key, body)] = Model.seen
    assert key == "Bearer only-for-the-model"
    assert body["model"] == "some-model"
    assert body["messages"][0] == {"role": "system", "content": "Be strict."}
    scores = {score["objective"]: score["value"] for score in record["objective_scores"]}
    assert scores["recall"] == 1 / len(row.defects)
    assert record["usage"]["total_tokens"] == 10
    assert "only-for-the-model" not in json.dumps(record)
