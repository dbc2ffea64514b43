"""`Client` against the real service: every call, its answer, and the exceptions."""

from __future__ import annotations

import signal
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.example import Example
from support.http_server import free_port
from support.polling import wait_until
from support.service import Service, run_service

from service.short_runs import LONG, TINY, config_file, events, has_event, sections
from synth_optimizers.client import Client, ServiceErrorDetails
from synth_optimizers.errors import (
    CancelledError,
    ConfigError,
    ContainerContractError,
    OptimizerHttpError,
    ProposerError,
    StateTransitionError,
    SynthOptimizerError,
)


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    """Yield a client of a separate service."""
    with Client(service.url) as made:
        yield made


@pytest.fixture
def reader(done: Service) -> Iterator[Client]:
    """Yield a client of the service whose runs are finished."""
    with Client(done.url) as made:
        yield made


def test_a_run_from_its_submission_to_its_result(
    client: Client, service: Service, slow: Example, tmp_path: Path
) -> None:
    taken = client.submit(config_file(tmp_path, slow), priority=2, idempotency_key="k")
    assert (taken.run_id, taken.replayed, taken.auto_started, taken.warnings) == ("router", False, True, ())
    assert (taken.request.priority, taken.request.idempotency_key) == (2, "k")
    assert client.submit(config_file(tmp_path, slow), priority=2, idempotency_key="k").replayed
    with pytest.raises(TimeoutError, match="router"):
        client.wait("router", timeout=0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait, "router")
        told = [event.to_dict() | {"version": 1} for event in client.watch("router")]
        detail = waiting.result(30)
    assert told == events(service, "router")
    assert (detail.status, detail.run_id, detail.is_terminal) == ("completed", "router", True)
    assert detail.run is not None
    assert detail.run.state == "completed"
    assert [step.trigger for step in detail.history] == ["submit", "claim", "start", "complete"]
    assert {origin.field: origin.value for origin in detail.origins}["gepa.minibatch_size"] == 4
    assert list(client.watch("router", after=len(told) - 1)) == []
    assert [event.sequence_number for event in client.events("router", after=100, page_size=7)] == list(
        range(101, len(told))
    )


def test_results_match_the_raw_answers_of_the_service(reader: Client, done: Service, tmp_path: Path) -> None:
    path = "/runs/router"
    best = reader.best("router")
    assert best is not None
    assert best.to_dict() == done.get(f"{path}/best")
    assert best.train_score is not None
    assert best.train_score.mean == 1.0
    candidates = list(reader.candidates("router", page_size=2))
    assert [known.to_dict() for known in candidates] == done.get(f"{path}/candidates")["items"]
    assert len(list(reader.candidates("router", status="accepted"))) == 4
    one = reader.candidate("router", best.candidate_id)
    assert one.to_dict() == done.get(f"{path}/candidates/{best.candidate_id}")
    rollouts = list(reader.rollouts("router", candidate_id=best.candidate_id, split="heldout", page_size=3))
    assert len(rollouts) == 4
    rollout = reader.rollout("router", rollouts[0].call_id or 0, trace=True)
    assert rollout.trace is not None
    assert rollout.trace["reply"]["rollout_id"] == rollout.rollout_id == rollouts[0].rollout_id
    frontier = reader.frontier("router")
    assert frontier.to_dict() == done.get(f"{path}/frontier")
    scores = list(reader.scores("router", page_size=3))
    assert [known.to_dict() for known in scores] == done.get(f"{path}/scores")["items"]
    series = reader.score_series("router", split="train")
    assert [point.value for point in series[0].points][-1] == 1.0
    artifacts = {known.name: known for known in reader.artifacts("router")}
    manifest = reader.artifact("router", "manifest.json")
    assert len(manifest) == artifacts["result_manifest.json"].bytes
    written = reader.download("router", "events.jsonl", tmp_path / "events.jsonl")
    assert written.read_bytes() == reader.artifact("router", "events.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.jsonl"]


def test_service_routes_match_the_raw_answers(reader: Client, done: Service) -> None:
    assert reader.health().pid == done.process.pid
    assert reader.ready().workers == 4
    assert reader.status()["run_request_status_counts"] == {"completed": 2, "cancelled": 5}
    assert reader.workspace()["runs"]["total"] == 7
    assert "synth_optimizers_run_requests" in reader.metrics()
    assert [entry.run_id for entry in reader.runs(page_size=2)] == [
        entry["run_id"] for entry in done.get("/runs")["items"]
    ]
    assert {entry.status for entry in reader.runs(state="cancelled")} == {"cancelled"}
    error = reader.run("c0").error
    assert error is not None
    assert (error["error_code"], error["reason_code"]) == ("synth_optimizer_cancelled", "cancelled")
    assert reader.best("c0") is None


def test_best_waits_for_a_newer_candidate_of_a_real_run(client: Client, slow: Example, tmp_path: Path) -> None:
    run_id = client.submit(config_file(tmp_path, slow)).run_id
    first = client.best(run_id, wait_newer_than=-1, timeout=30)
    assert first is not None
    second = client.best(run_id, wait_newer_than=first.sequence, timeout=30)
    assert second is not None
    assert second.sequence > first.sequence
    client.wait(run_id)
    last = client.best(run_id)
    assert last is not None
    assert client.best(run_id, wait_newer_than=last.sequence, timeout=30) is None


def test_control_requests_of_the_client(client: Client, service: Service, slow: Example, tmp_path: Path) -> None:
    run_id = client.submit(config_file(tmp_path, slow, **LONG)).run_id
    wait_until("a generation", has_event(service, run_id, "generation.started"))
    paused = client.pause(run_id, timeout_seconds=60, reason="lunch")
    assert (paused.action, paused.acknowledgement) == ("pause", "accepted")
    service.wait(run_id, "paused")
    waiting = client.run(run_id).request.waiting
    assert waiting is not None
    assert waiting.reason == "paused"
    assert client.pause(run_id).acknowledgement == "noop"
    assert client.resume(run_id).acknowledgement == "accepted"
    assert client.stop(run_id, reason="enough").acknowledgement == "accepted"
    detail = client.wait(run_id)
    assert detail.run is not None
    assert (detail.run.stopped_by or {})["kind"] == "external"
    assert client.cancel(run_id).acknowledgement == "noop"
    with pytest.raises(StateTransitionError) as caught:
        client.pause(run_id)
    assert isinstance(caught.value, ServiceErrorDetails)
    assert (caught.value.state, caught.value.code, caught.value.status) == ("completed", "invalid_transition", 409)


def test_the_queue_is_processed_by_worker_calls(client: Client, example: Example, tmp_path: Path) -> None:
    config = sections(tmp_path, example, run__run_id=None, **TINY)
    stepped = client.submit(config=config, manual_step=True).run_id
    known = client.step(stepped)
    assert known.events
    while not known.terminal:
        known = client.step(stepped, timeout=30)
    assert known.state == "completed"
    nothing = client.tick()
    assert (nothing.request, nothing.action) == (None, {"action": "noop"})
    next_one = client.submit(config=config, auto_start=False).run_id
    done = client.run_next(worker_id="me", lease_seconds=60)
    assert done.request is not None
    assert (done.request.run_id, done.request.status) == (next_one, "completed")
    ticked = client.submit(config=config, auto_start=False).run_id
    tick = client.tick(worker_id="me")
    assert tick.action == {"action": "claim_run_request"}
    while not tick.terminal:
        tick = client.tick()
    assert client.wait(ticked).status == "completed"
    assert client.recover() == ()
    pruned = client.prune(older_than=datetime.now(UTC), status=["completed"])
    assert (set(pruned.run_ids), pruned.dry_run) == ({stepped, next_one, ticked}, True)
    client.delete(stepped)
    client.delete(stepped)
    assert set(client.prune(dry_run=False).run_ids) == {next_one, ticked}
    assert list(client.runs()) == []


def test_preflight_matches_the_raw_answer(client: Client, example: Example, tmp_path: Path) -> None:
    report = client.preflight(config_file(tmp_path, example))
    assert (report.ok, report.blockers) == (True, ())
    assert report.plan is not None
    assert report.plan.train_rows == 12
    text = (tmp_path / "gepa.toml").read_text(encoding="utf-8")
    assert client.preflight(config=text, overrides=["gepa.minibatch_size=3"]).ok
    bad = client.preflight(config=tomllib.loads(text), overrides=["gepa.minibatch_size=0"])
    assert [(found.field, found.code) for found in bad.blockers] == [("gepa.minibatch_size", "out_of_range")]
    with pytest.raises(ConfigError, match=r"gepa\.minibatch_size") as caught:
        client.submit(config=text, overrides=["gepa.minibatch_size=0"])
    assert isinstance(caught.value, ServiceErrorDetails)
    assert caught.value.field_errors == bad.blockers
    assert (caught.value.code, caught.value.status, caught.value.retryable) == ("invalid_config", 422, False)
    assert [finding.field for finding in caught.value.findings] == ["gepa.minibatch_size"]
    assert str(caught.value.request_id).startswith("req_")
    assert caught.value.hint


def test_errors_have_classes_codes_and_hints(reader: Client) -> None:
    for call in (reader.run, reader.frontier, reader.best, reader.artifacts):
        with pytest.raises(SynthOptimizerError, match="missing") as caught:
            call("missing")
        assert isinstance(caught.value, ServiceErrorDetails)
        assert (caught.value.code, caught.value.status) == ("run_not_found", 404)
        assert caught.value.hint
    with pytest.raises(SynthOptimizerError, match="artifact"):
        reader.artifact("router", "nothing")
    with pytest.raises(ConfigError, match="great"):
        list(reader.candidates("router", status="great"))


@pytest.mark.parametrize(
    ("section", "settings", "kind"),
    [
        ("container", {"url": "http://127.0.0.1:1", "connect_retries": 0}, ContainerContractError),
        ("proposer", {"model": "missing"}, ProposerError),
    ],
)
def test_a_run_that_failed_raises_the_exception_of_its_cause(
    section: str,
    settings: dict[str, object],
    kind: type[SynthOptimizerError],
    client: Client,
    example: Example,
    tmp_path: Path,
) -> None:
    config = sections(tmp_path, example, **TINY)
    config[section] |= settings
    run_id = client.submit(config=config, allow_unverified=True).run_id
    with pytest.raises(SynthOptimizerError, match="router") as caught:
        client.wait(run_id)
    assert type(caught.value) is kind
    assert caught.value.hint


def test_a_cancelled_run_raises_cancelled_error(client: Client, example: Example, tmp_path: Path) -> None:
    run_id = client.submit(config_file(tmp_path, example), auto_start=False).run_id
    client.cancel(run_id, reason="not needed")
    with pytest.raises(CancelledError, match="not needed"):
        client.wait(run_id)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_watch_continues_after_a_restart_of_the_service(
    number: signal.Signals, slow: Example, tmp_path: Path
) -> None:
    bind = ("--bind", f"127.0.0.1:{free_port()}")
    with ThreadPoolExecutor(1) as pool:
        with run_service(tmp_path, *bind) as service:
            client = Client(service.url)
            run_id = client.submit(config_file(tmp_path, slow)).run_id
            watching = pool.submit(lambda: [event.sequence_number for event in client.watch(run_id, retries=20)])
            wait_until("a generation", has_event(service, run_id, "generation.started"))
            service.end(number)
        with client, run_service(tmp_path, *bind) as service:
            assert service.wait(run_id)["status"] == "completed"
            assert watching.result(30) == list(range(len(events(service, run_id))))


def test_a_token_gives_access(tmp_path: Path) -> None:
    token = "t" * 40
    (tmp_path / "token").write_text(token, encoding="utf-8")
    (tmp_path / "token").chmod(0o600)
    with run_service(tmp_path, "--token-file", "token", token=token) as service:
        with Client(service.url, token=token) as client:
            assert list(client.runs()) == []
        for wrong in (None, "u" * 40):
            with (
                Client(service.url, token=wrong, retries=0) as client,
                pytest.raises(OptimizerHttpError, match="token") as caught,
            ):
                client.health()
            assert isinstance(caught.value, ServiceErrorDetails)
            assert (caught.value.code, caught.value.status) == ("unauthorized", 401)
            assert token not in f"{caught.value} {caught.value.detail}"
