"""Preflight findings are reported completely and equally by check and by submit."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cli.commands import run_cli
from support.example import Example
from support.http_server import free_port
from support.polling import wait_until
from support.service import Service, run_service

from service.short_runs import TINY, config_file, expect_error, sections
from synth_optimizers.client import Client
from synth_optimizers.errors import OptimizerHttpError

Change = Callable[[dict[str, Any]], object]


def dead() -> str:
    """Return an address without a server."""
    return f"http://127.0.0.1:{free_port()}"


CASES: dict[str, tuple[Change, str | None]] = {
    "nothing": (lambda config: config, None),
    "a wrong number": (lambda config: config["gepa"].update(minibatch_size=0), "invalid_config"),
    "an unknown section": (lambda config: config.update(gepas={}), "invalid_config"),
    "a key for a field": (lambda config: config["proposer"].update(api_key="sk-5555555555"), "inline_secret_refused"),
    "an inline secret": (
        lambda config: config["policy"].update(config={"api_key": "sk-5555555555"}),
        "inline_secret_refused",
    ),
    "a dead container": (
        lambda config: config["container"].update(url=dead(), connect_retries=0),
        "preflight_failed",
    ),
    "a missing key": (lambda config: config["proposer"].update(api_key_env="XAI_API_KEY"), "preflight_failed"),
    "another variable": (lambda config: config["proposer"].update(api_key_env="NO_SUCH_KEY"), "preflight_failed"),
    "a dead proposer": (lambda config: config["proposer"].update(base_url=dead()), "preflight_failed"),
    "a proposer elsewhere": (
        lambda config: config["proposer"].update(base_url="http://192.0.2.1:80/v1"),
        "preflight_failed",
    ),
    "a budget too small": (lambda config: config["gepa"].update(max_total_rollouts=3), "preflight_failed"),
    "a field that is not there": (
        lambda config: config["candidate"].update(target_modules=["router_promt"]),
        "preflight_failed",
    ),
    "rows that are not there": (lambda config: config["dataset"].update(train_seeds=[0, 99_999]), "preflight_failed"),
    "a container elsewhere": (lambda config: config["container"].update(url="http://192.0.2.1:80"), "preflight_failed"),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: ANN401 (a service and its directory)
    """Yield a service for the tests of this file that leave it unchanged."""
    place = tmp_path_factory.mktemp("preflight")
    with run_service(place) as running:
        yield running, place


@pytest.mark.parametrize("case", CASES)
def test_a_check_succeeds_exactly_when_a_submission_is_accepted(
    case: str, shared: tuple[Service, Path], example: Example
) -> None:
    service, place = shared
    change, code = CASES[case]
    config = sections(place, example, **TINY)
    change(config)
    report = service.ask("POST", "/runs/preflight", {"config": config})
    assert report.status_code == 200, report.text
    known: dict[str, Any] = report.json()
    assert known["ok"] == (known["blockers"] == [])
    # The check has stored neither a run request nor a file.
    assert service.get("/status")["run_requests"] == []
    assert sorted(path.name for path in place.iterdir() if not path.name.startswith("service")) == ["gepa.toml"]
    assert known["ok"] == (code is None)
    reply = service.submit(config, auto_start=False)
    if code is None:
        assert reply.status_code == 201, reply.text
        assert reply.json()["warnings"] == known["warnings"]
        assert service.ask("POST", "/runs/router/cancel", {}).status_code == 202
        assert service.ask("DELETE", "/runs/router").status_code == 204
        return
    error = expect_error(reply, 422, code)
    assert error["field_errors"] == known["blockers"]
    assert service.get("/runs")["items"] == []
    for found in known["blockers"]:
        assert set(found) == {"stage", "code", "field", "location", "message", "hint", "retryable"}
        assert found["stage"] in ("config", "output", "cache", "container", "task", "proposer", "budget")
        assert isinstance(found["retryable"], bool)
        assert found["message"]
        assert found["hint"]
    assert "sk-5555555555" not in reply.text + report.text


def test_every_finding_is_reported_at_once(shared: tuple[Service, Path], example: Example) -> None:
    service, place = shared
    file = config_file(
        *(place, example),
        gepa__minibatch_size=0,
        gepa__max_generation=3,
        proposer__backend="codex_server",
        container__url=dead(),
        container__connect_retries=0,
    )
    error = expect_error(service.submit(file), 422, "preflight_failed")
    found = {problem["field"]: problem for problem in error["field_errors"]}
    assert set(found) == {
        *("gepa.minibatch_size", "gepa.max_generation", "proposer.backend", "container.url"),
    }
    assert {problem["stage"] for problem in found.values()} == {"config", "container"}
    assert "max_generations" in found["gepa.max_generation"]["hint"]
    # Findings in the file have their location there.
    lines = (place / file).read_text(encoding="utf-8").splitlines()
    for field, problem in found.items():
        if problem["stage"] == "config":
            name, line, _ = problem["location"].rsplit(":", 2)
            assert name == "gepa.toml"
            assert lines[int(line) - 1].startswith(f'"{field.partition(".")[2]}"')
    assert found["container.url"]["retryable"]
    assert not found["gepa.minibatch_size"]["retryable"]
    report = service.ask("POST", "/runs/preflight", {"config_path": str(file)}).json()
    assert report["blockers"] == error["field_errors"]
    # The command line uses the same checks.
    checked = run_cli("gepa", "check", "--config", str(file), "--json", cwd=place)
    assert json.loads(checked.stdout)["blockers"] == error["field_errors"]
    config_file(place, example)


def test_a_successful_check_returns_facts_and_plan(shared: tuple[Service, Path], example: Example) -> None:
    service, place = shared
    report = service.ask("POST", "/runs/preflight", {"config": sections(place, example)}).json()
    assert report["facts"]["container"]["program_id"] == "ticket_router"
    assert report["facts"]["proposer"]["model"] == "offline-reflector"
    assert report["plan"]["seed_evaluation"] == 12
    assert report["plan"]["worst_case_rollouts"] <= 200


@pytest.mark.parametrize(
    "body", [{}, {"config_path": "gepa.toml", "config": {}}, {"config": 7}, {"config_pth": "gepa.toml"}], ids=str
)
def test_a_body_without_exactly_one_configuration_is_refused(body: object, shared: tuple[Service, Path]) -> None:
    for path in ("/runs", "/runs/preflight"):
        expect_error(shared[0].ask("POST", path, body), 422, "invalid_request")


@pytest.mark.parametrize("path", ["nothing.toml", "../gepa.toml", "/etc/passwd", ".", "service.sqlite"])
def test_an_invalid_configuration_file_is_refused(path: str, shared: tuple[Service, Path]) -> None:
    reply = shared[0].ask("POST", "/runs", {"config_path": path})
    assert reply.status_code == 422, reply.text
    assert reply.json()["error"]["code"] in ("config_path_refused", "invalid_config", "synth_optimizer_toml_error")
    assert str(shared[1]) not in reply.text


def test_an_unverified_run_fails_with_the_cause(service: Service, example: Example, tmp_path: Path) -> None:
    config = sections(tmp_path, example)
    config["container"] |= {"url": dead(), "connect_retries": 0}
    expect_error(service.submit(config), 422, "preflight_failed")
    service.run_id(config, allow_unverified=True)
    request = service.wait("router")
    assert request["status"] == "failed"
    error = request["error"]
    assert (error["error_code"], error["reason_code"]) == ("synth_optimizer_container_error", None)
    assert config["container"]["url"].removeprefix("http://") in error["message"]
    assert error["retryable"]
    assert error["hint"]


def test_check_and_submit_report_the_same_file_problems_without_paths(
    service: Service, example: Example, tmp_path: Path
) -> None:
    (tmp_path / "cache.sqlite").write_text("no database" * 100, encoding="utf-8")
    config = sections(tmp_path, example, cache__mode="readwrite", cache__path="cache.sqlite")
    reply = service.submit(config)
    error = expect_error(reply, 422, "preflight_failed")
    assert [found["field"] for found in error["field_errors"]] == ["cache.path"]
    assert str(tmp_path) not in reply.text
    report = service.ask("POST", "/runs/preflight", {"config": config})
    assert str(tmp_path) not in json.dumps(report.json()["blockers"])
    assert report.json()["blockers"] == error["field_errors"]


def test_a_cache_that_another_run_is_creating_is_not_a_finding(
    service: Service, example: Example, tmp_path: Path
) -> None:
    def check(config: dict[str, Any], is_over: threading.Event) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while not is_over.is_set():
            found += service.ask("POST", "/runs/preflight", {"config": config}).json()["blockers"]
        return found

    # The critical moment is short, so the test tries several times.
    for number in range(8):
        cached = {"cache__mode": "readwrite", "cache__path": f"cache{number}.sqlite", **TINY}
        config = sections(tmp_path, example, run__run_id=f"r{number}", **cached)
        is_over = threading.Event()
        with ThreadPoolExecutor(3) as pool:
            other = sections(tmp_path, example, run__run_id="other", **cached)
            checks = [pool.submit(check, other, is_over) for _ in range(3)]
            service.run_id(config)
            service.wait(f"r{number}")
            is_over.set()
            assert [found for checked in checks for found in checked.result()] == []


def test_a_full_queue_answers_with_retry_after(tmp_path: Path, slow: Example) -> None:
    with run_service(tmp_path, "--max-queued", "1", "--workers", "1") as service:
        service.run_id(sections(tmp_path, slow, run__run_id="first", **TINY))
        service.wait("first", "running")
        service.run_id(sections(tmp_path, slow, run__run_id="second", **TINY))
        reply = service.submit(sections(tmp_path, slow, run__run_id="third", **TINY))
        error = expect_error(reply, 429, "queue_full")
        assert error["retryable"]
        assert int(reply.headers["retry-after"]) >= 1
        assert [entry["run_id"] for entry in service.get("/runs")["items"]] == ["second", "first"]
        with Client(service.url, retries=0) as client:
            with pytest.raises(OptimizerHttpError) as caught:
                client.submit(config=sections(tmp_path, slow, run__run_id="third", **TINY))
            assert getattr(caught.value, "code", None) == "queue_full"
            # The queue has room once the worker claims the second run.
            taken = client.submit(config=sections(tmp_path, slow, run__run_id="third", **TINY), wait_for_capacity=30)
            assert (taken.run_id, taken.replayed) == ("third", False)
        assert service.wait("third")["status"] == "completed"


def test_wait_for_capacity_has_a_deadline(tmp_path: Path, example: Example) -> None:
    with (
        run_service(tmp_path, "--max-queued", "1", "--workers", "1") as service,
        Client(service.url, retries=0) as client,
    ):
        service.run_id(sections(tmp_path, example, run__run_id="first"), auto_start=False)
        with pytest.raises(OptimizerHttpError, match="the limit is 1"):
            client.submit(config=sections(tmp_path, example, run__run_id="second"), wait_for_capacity=1.5)
        with ThreadPoolExecutor(1) as pool:
            config = sections(tmp_path, example, run__run_id="second")
            waiting = pool.submit(client.submit, config=config, wait_for_capacity=30, auto_start=False)
            wait_until("an attempt", lambda: "429" in client.metrics())
            assert service.ask("POST", "/runs/first/cancel", {}).json()["status"] == "cancelled"
            assert waiting.result().run_id == "second"
