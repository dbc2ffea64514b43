"""Every method of both clients sends the right HTTP request and returns the parsed answer."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.stand_in import Answer, StandInService, detail, entry, refusal

from client.clients import with_short_delays
from synth_optimizers import RunStatus, Score
from synth_optimizers.client import AsyncClient, Client
from synth_optimizers.errors import ConfigError, OptimizerHttpError

SCORE = {"mean": 0.5, "n": 4, "standard_error": 0.1, "low": 0.3, "high": 0.7}
CANDIDATE = {"candidate_id": "gepa_1", "status": "accepted", "payload": {"p": "text"}, "train_score": SCORE, "new": 1}
BEST = {"candidate_id": "gepa_1", "payload": {"p": "text"}, "train_score": SCORE, "sequence": 40, "generation": 0}
POINT = {"sequence": 9, "at": "2026-11-16T12:00:00Z", "candidate_id": "gepa_1", "value": 0.5, "n": 4}
SERIES = {"metric": "score", "split": "train", "direction": "maximize", "points": [POINT]}
ACTED = {"run_id": "r", "acknowledgement": "accepted", "status": "running", "message": "it is told"}
REPORT = {"ok": True, "blockers": [], "warnings": [], "facts": {}, "plan": None}
HEALTH = {
    "status": "ok",
    "phase": "ready",
    "pid": 7,
    "version": "1",
    "started_at": "2026-11-16T12:00:00Z",
    "instance_id": "i",
}

CALLS: list[tuple[Callable[[Any], Any], str, str, dict[str, Any]]] = [
    (lambda c: c.health(), "GET", "/health", HEALTH),
    (lambda c: c.ready(), "GET", "/ready", {"status": "ready", "database": "open", "workers": 4}),
    (lambda c: c.status(), "GET", "/status", {"schema_version": "1", "run_requests": []}),
    (lambda c: c.workspace(), "GET", "/workspace", {"schema_version": "1", "runs": {}}),
    (lambda c: c.preflight("gepa.toml"), "POST", "/runs/preflight", REPORT),
    (lambda c: c.run("r"), "GET", "/runs/r", detail(entry("r"))),
    (lambda c: c.cancel("r", reason="enough"), "POST", "/runs/r/cancel", {**ACTED, "action": "cancel"}),
    (lambda c: c.stop("r"), "POST", "/runs/r/stop", {**ACTED, "action": "stop"}),
    (lambda c: c.pause("r", timeout_seconds=60), "POST", "/runs/r/pause", {**ACTED, "action": "pause"}),
    (lambda c: c.resume("r"), "POST", "/runs/r/resume", {**ACTED, "action": "resume"}),
    (lambda c: c.step("r"), "POST", "/runs/r/step", {"run_id": "r", "terminal": False, "state": "ready", "events": []}),
    (lambda c: c.candidate("r", "gepa_1"), "GET", "/runs/r/candidates/gepa_1", CANDIDATE),
    (lambda c: c.rollout("r", "r-1"), "GET", "/runs/r/rollouts/r-1", {"rollout_id": "r-1", "candidate_id": "gepa_1"}),
    (lambda c: c.frontier("r"), "GET", "/runs/r/frontier", {"items": [{"candidate_id": "gepa_1"}], "size": 1}),
    (lambda c: c.best("r"), "GET", "/runs/r/best", BEST),
    (
        lambda c: c.run_next(),
        "POST",
        "/worker/run-next",
        {"request": entry("r"), "result": {"a": 1}, "message": "done"},
    ),
    (
        lambda c: c.tick(),
        *("POST", "/worker/tick"),
        {"request": None, "result": None, "action": {"action": "noop"}, "terminal": False, "message": "idle"},
    ),
    (lambda c: c.prune(status=["failed"]), "POST", "/workspace/prune", {"run_ids": ["r"], "dry_run": True}),
]


@pytest.mark.parametrize(("call", "method", "path", "answer"), CALLS, ids=[f"{call[1]} {call[2]}" for call in CALLS])
def test_a_call_returns_the_parsed_answer(
    call: Callable[[Any], Any], method: str, path: str, answer: dict[str, Any], client: Client, service: StandInService
) -> None:
    service.route(method, path, answer)

    async def awaited() -> object:
        async with with_short_delays(AsyncClient(service.address)) as made:
            return await call(made)

    found = call(client)
    assert found == asyncio.run(awaited())
    known = found if isinstance(found, dict) else found.to_dict()
    plain = json.loads(json.dumps(known))
    assert {name: plain[name] for name in answer} == answer or answer.items() <= plain.items()
    first, second = service.seen
    assert (first.method, first.params, first.body) == (second.method, second.params, second.body)


def test_both_clients_have_the_same_methods() -> None:
    def calls(kind: type) -> dict[str, list[str]]:
        found = {name: value for name, value in vars(kind).items() if name[0] != "_" and "close" not in name}
        return {name: list(inspect.signature(value).parameters) for name, value in found.items()}

    assert calls(Client) == calls(AsyncClient)
    for name, value in vars(Client).items():
        if name[0] != "_":
            assert value.__doc__, name
            positional = [
                each for each in inspect.signature(value).parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD
            ]
            names = {each.name for each in positional} - {"self"}
            assert names <= {
                "run_id",
                "other_run_id",
                "candidate_id",
                "rollout_id",
                "turn",
                "name",
                "path",
                "config_path",
            }, name


def test_a_submission_sends_every_option(client: Client, service: StandInService) -> None:
    warning = {"code": "unused", "field": "gepa.x", "message": "not used", "hint": "", "stage": "config"}
    taken = {"run_id": "r", "request": entry("r", "queued"), "auto_started": False, "replayed": True}
    service.route("POST", "/runs", Answer(200, {**taken, "warnings": [warning]}))
    found = client.submit(
        config={"run": {"output_dir": Path("runs")}},
        priority=3,
        auto_start=False,
        manual_step=True,
        allow_unverified=True,
        overrides=["gepa.max_generations=3"],
        idempotency_key="mine",
    )
    assert (found.replayed, found.request.status, found.warnings[0].field) == (True, "queued", "gepa.x")
    (seen,) = service.seen
    assert seen.headers["idempotency-key"] == "mine"
    assert seen.body == {
        "config": {"run": {"output_dir": "runs"}},
        "priority": 3,
        "auto_start": False,
        "manual_step": True,
        "allow_unverified": True,
        "overrides": ["gepa.max_generations=3"],
    }


def test_a_submission_needs_exactly_one_configuration(client: Client, service: StandInService) -> None:
    for wrong in ({}, {"config_path": "a.toml", "config": "[run]"}):
        with pytest.raises(TypeError, match="config_path"):
            client.submit(**wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not one text"):
        client.submit("a.toml", overrides="gepa.seed=1")
    with pytest.raises(TypeError, match="is not a JSON value"):
        client.submit(config={"run": {"seed": object()}})
    assert service.seen == []


def test_run_details_reuse_the_records_of_local_runs(client: Client, service: StandInService) -> None:
    run = dict.fromkeys((field for field in RunStatus.__dataclass_fields__), None)
    known = {**run, "run_id": "r", "state": "completed", "best_train_score": SCORE, "later": "unknown field"}
    waiting = {"reason": "container_busy", "message": "held by x", "since": None, "deadline_at": None}
    service.route("GET", "/runs/r", detail(entry("r", "queued", waiting=waiting), known))
    found = client.run("r")
    assert isinstance(found.run, RunStatus)
    assert found.run.best_train_score == Score(**SCORE)  # type: ignore[arg-type]
    assert found.request.waiting is not None
    assert found.request.waiting.reason == "container_busy"
    assert (found.run_id, found.status, found.is_terminal) == ("r", "queued", False)
    assert found.history[0].to_status == "queued"
    assert found.to_dict()["history"][0]["to"] == "queued"


def test_lists_are_read_page_by_page(client: Client, service: StandInService) -> None:
    def page(seen: Any) -> Answer:  # noqa: ANN401
        start = int(seen.params.get("cursor", "0"))
        items = [entry(f"run{number}") for number in range(start, min(start + 2, 5))]
        return Answer(body={"items": items, "next_cursor": str(start + 2) if start + 2 < 5 else None})

    service.route("GET", "/runs", page)
    found = client.runs(state="completed", page_size=2)
    assert next(found).run_id == "run0"
    assert len(service.seen) == 1
    assert [each.run_id for each in found] == ["run1", "run2", "run3", "run4"]
    assert {seen.params["state"] for seen in service.seen} == {"completed"}
    service.route("GET", "/runs/r/candidates", {"items": [CANDIDATE], "next_cursor": None})
    (candidate,) = client.candidates("r", status="accepted")
    assert candidate.train_score == Score(**SCORE)  # type: ignore[arg-type]
    assert candidate.more == {"new": 1}
    rollouts = [{"rollout_id": "r-1", "candidate_id": "gepa_1", "reward": 1.0}]
    service.route("GET", "/runs/r/rollouts", {"items": rollouts, "next_cursor": None})
    assert [each.to_dict()["reward"] for each in client.rollouts("r", stage="heldout")] == [1.0]
    assert service.seen[-1].params == {"limit": "100", "stage": "heldout"}


def test_ids_are_quoted_in_paths(client: Client, service: StandInService) -> None:
    service.route("GET", "/runs/a b/../ü?x", detail(entry("a b/../ü?x")))
    assert client.run("a b/../ü?x").run_id == "a b/../ü?x"


def test_scores_and_score_series_are_parsed(client: Client, service: StandInService) -> None:
    score = {"candidate_id": "gepa_1", "metric": "score", "split": "train", "value": 0.5, "n": 4, "score_id": "s1"}
    service.first("/runs/r/scores", Answer(body={"items": [score], "has_more": True, "next_since": 9}))
    service.route("GET", "/runs/r/scores", {"items": [{**score, "sequence": 12, "new": 1}]})
    first, second = client.scores("r", since=5)
    assert (first.score_id, second.sequence, second.to_dict()["new"]) == ("s1", 12, 1)
    assert [seen.params["since"] for seen in service.seen] == ["5", "9"]
    service.route("GET", "/runs/r/scores/series", {"series": [SERIES]})
    (series,) = client.score_series("r", split="train")
    assert [point.value for point in series.points] == [0.5]


def test_best_waits_for_a_newer_candidate(client: Client, service: StandInService) -> None:
    path = "/runs/r/best"
    service.first(path, Answer(304), Answer(304), Answer(body=BEST))
    found = client.best("r", wait_newer_than=12, timeout=90)
    assert found is not None
    assert found.sequence == 40
    assert {name: service.seen[0].params[name] for name in service.seen[0].params} == {
        "wait_newer_than": "12",
        "timeout_seconds": "30",
    }
    service.route("GET", path, Answer(304))
    assert client.best("r", wait_newer_than=40, timeout=0) is None
    # No newer candidate can appear any more.
    asked = len(service.calls(path))
    service.route("GET", path, Answer(304, headers={"run-is-terminal": "true"}))
    assert client.best("r", wait_newer_than=40, timeout=600) is None
    assert len(service.calls(path)) == asked + 1
    service.route("GET", path, refusal(404, "no_best_candidate", "synth_optimizer_config_error"))
    assert client.best("r") is None
    service.route("GET", path, refusal(404, "run_not_found", "synth_optimizer_config_error"))
    with pytest.raises(ConfigError):
        client.best("r")


def test_the_digest_of_an_artifact_is_checked(client: Client, service: StandInService, tmp_path: Path) -> None:
    content = bytes(range(256)) * 4096
    digest = hashlib.sha256(content).hexdigest()
    named = {"name": "result_manifest.json", "kind": "manifest", "media_type": "application/json"}
    listed = {**named, "bytes": len(content), "sha256": digest}
    service.route("GET", "/runs/r/artifacts", {"items": [listed]})
    assert [each.to_dict() for each in client.artifacts("r")] == [listed]
    path = "/runs/r/artifacts/result_manifest.json"
    service.route("GET", path, Answer(200, content, {"etag": f'"{digest}"', "content-type": "application/json"}))
    assert client.artifact("r", "result_manifest.json") == content
    out = client.download("r", "result_manifest.json", tmp_path / "manifest.json")
    assert out.read_bytes() == content
    service.route("GET", path, Answer(200, content[:-1], {"etag": f'"{digest}"'}))
    for get in (
        lambda: client.artifact("r", "result_manifest.json"),
        lambda: client.download("r", "result_manifest.json", tmp_path / "damaged.json"),
    ):
        with pytest.raises(OptimizerHttpError, match="digest"):
            get()
    assert [each.name for each in tmp_path.iterdir()] == ["manifest.json"]


def test_an_interrupted_download_starts_again(client: Client, service: StandInService) -> None:
    digest = hashlib.sha256(b"whole").hexdigest()
    head = {"etag": f'"{digest}"'}
    short = Answer(200, b"who", {**head, "content-length": "5"}, stream=[b"who"])
    service.first("/runs/r/artifacts/x", short)
    service.route("GET", "/runs/r/artifacts/x", Answer(200, b"whole", head))
    assert client.artifact("r", "x") == b"whole"
    assert len(service.seen) == 2


def test_service_routes_are_parsed(client: Client, service: StandInService) -> None:
    service.route("GET", "/metrics", Answer(200, b"runs_total 3\n", {"content-type": "text/plain"}))
    assert client.metrics() == "runs_total 3\n"
    service.route("DELETE", "/runs/r", Answer(204))
    client.delete("r")
    service.route("POST", "/worker/recover", {"recovered_run_requests": [entry("r", "queued")]})
    assert [each.run_id for each in client.recover()] == ["r"]
    service.route("POST", "/workspace/prune", {"run_ids": [], "dry_run": False})
    client.prune(older_than=datetime(2026, 1, 1, tzinfo=UTC), dry_run=False)
    assert service.seen[-1].body == {"older_than": "2026-01-01T00:00:00Z", "status": [], "dry_run": False}


def test_wait_returns_a_finished_run(client: Client, service: StandInService) -> None:
    service.first("/runs/r", *[Answer(body=detail(entry("r", "running")))] * 2)
    service.route("GET", "/runs/r", detail(entry("r")))
    assert client.wait("r", timeout=20).status == "completed"
