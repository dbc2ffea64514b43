"""Health, readiness, the queue's status, Prometheus metrics, and the OpenAPI document."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from support.example import Example
from support.polling import wait_until
from support.service import Service

from service.short_runs import LONG, TINY, config_file, expect_error, sections
from synth_optimizers import __version__, workspace_status

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?P<labels>\{[^}]*\})? (?P<value>\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
PREFIX = "synth_optimizers_"


def samples(text: str) -> Samples:
    """Parse the Prometheus text format; check that each family occurs once, contiguously, after its description."""
    found: Samples = {}
    kinds: dict[str, str] = {}
    family = ""
    assert text.endswith("# EOF\n")
    for line in text.splitlines()[:-1]:
        if line.startswith("#"):
            mark, name, told = line[2:].split(" ", 2)
            assert mark in ("HELP", "TYPE", "UNIT")
            if mark == "HELP":
                assert name not in kinds
                family, kinds[name] = name, ""
            assert name == family
            if mark == "TYPE":
                kinds[name] = told
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        name = match["name"]
        endings = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}[kinds[family]]
        assert name in [family + ending for ending in endings], line
        key = (name.removeprefix(PREFIX), frozenset(LABEL.findall(match["labels"] or "")))
        assert name.startswith(PREFIX)
        assert key not in found, line
        found[key] = float(match["value"])
    return found


def metric_value(known: Samples, name: str, **labels: str) -> float:
    """Return the value of a metric; one that was never counted is zero."""
    return known.get((name, frozenset(labels.items())), 0.0)


def fetch_metrics(service: Service) -> Samples:
    """Fetch and parse the metrics."""
    reply = service.http.get("/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    return samples(reply.text)


def test_metrics_are_correct_after_known_runs(service: Service, example: Example, tmp_path: Path) -> None:
    cached = {"cache__mode": "readwrite", "cache__path": "cache.sqlite"}
    usage = []
    for name in ("first", "again"):
        service.run_id(config_file(tmp_path, example, run__run_id=name, **cached))
        usage.append(service.wait(name)["usage"])
    service.run_id(config_file(tmp_path, example, run__run_id="waits"), auto_start=False)
    known = fetch_metrics(service)
    assert [used["cached_calls"] for used in usage] == [0, 95]
    assert metric_value(known, "run_requests", status="completed") == 2
    assert metric_value(known, "run_requests", status="queued") == 1
    assert metric_value(known, "run_requests", status="running") == 0
    assert metric_value(known, "proposer_turns_total", kind="completed") == 6
    assert metric_value(known, "cache_hits_total", kind="proposer") == 3
    assert metric_value(known, "tokens_total", kind="proposer") == usage[0]["total_tokens"] > 0
    assert metric_value(known, "tokens_total", kind="rollout") == 0
    assert metric_value(known, "cost_usd_total") == 0
    assert metric_value(known, "unpriced_calls_total") == 0
    assert metric_value(known, "active_runs") == 0
    assert metric_value(known, "oldest_lease_age_seconds") == 0
    assert 0 < metric_value(known, "oldest_queued_age_seconds") < 60
    assert metric_value(known, "http_responses_total", status="201") == 3
    assert metric_value(known, "run_requests_recovered_total") == 0
    assert metric_value(known, "runs_fenced_total") == 0
    # Every rollout of both runs is counted, including the last ones.
    assert metric_value(known, "rollouts_total", kind="finished") == 184
    assert metric_value(known, "cache_hits_total", kind="rollout") == 92


def test_commit_durations_are_measured(service: Service, example: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, example, **TINY))
    service.wait("router")
    known = fetch_metrics(service)
    for database in ("run", "queue"):
        count = metric_value(known, "commit_duration_seconds_count", kind=database)
        assert count > 0
        assert metric_value(known, "commit_duration_seconds_sum", kind=database) > 0
        buckets = {
            float(dict(labels)["le"]): number
            for (name, labels), number in known.items()
            if name == "commit_duration_seconds_bucket" and ("kind", database) in labels
        }
        counts = [buckets[edge] for edge in sorted(buckets)]
        assert counts == sorted(counts)
        assert buckets[float("inf")] == count


def test_metrics_follow_an_active_run(service: Service, slow: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, slow, **LONG))
    service.wait("router", "running")
    with httpx.stream("GET", f"{service.url}/runs/router/events", headers={"accept": "text/event-stream"}) as stream:
        lines = stream.iter_lines()
        assert next(lines)
        known = fetch_metrics(service)
    assert metric_value(known, "active_runs") == 1
    assert metric_value(known, "run_requests", status="running") == 1
    assert metric_value(known, "oldest_lease_age_seconds") > 0
    assert metric_value(known, "event_streams") == 1
    wait_until("the end of the stream", lambda: metric_value(fetch_metrics(service), "event_streams") == 0)
    service.ask("POST", "/runs/router/cancel", {})
    service.wait("router")


def test_health_and_readiness(service: Service) -> None:
    health = service.get("/health")
    assert (health["status"], health["phase"], health["version"]) == ("ok", "ready", __version__)
    assert health["pid"] == service.process.pid
    os.kill(health["pid"], 0)
    assert health["started_at"].endswith("Z")
    assert health["instance_id"]
    assert service.get("/ready") == {"status": "ready", "database": "open", "workers": 4}


def test_status_matches_the_database(done: Service) -> None:
    status = done.get("/status")
    assert status["run_request_status_counts"] == {"completed": 2, "cancelled": 5}
    assert [entry["run_id"] for entry in status["run_requests"]] == [
        entry["run_id"] for entry in done.get("/runs")["items"]
    ]
    report = status["workspace_invariant_report"]
    assert (report["status"], report["violation_count"]) == ("pass", 0)
    # Python reads the same file.
    told = workspace_status(done.log.parent / "service.sqlite")
    assert told["run_requests"] == status["run_requests"]


def test_workspace_counts_requests_leases_and_workers(done: Service) -> None:
    known = done.get("/workspace")
    assert known["runs"] == {"total": 7, "by_status": {"completed": 2, "cancelled": 5}}
    assert (known["leases"], known["workers"]) == ([], [])
    assert known["invariants"]["status"] == "pass"
    assert known["liveness"]["oldest_queued_age_seconds"] is None
    assert "projections" in known


ROUTES = {
    "get": ["/health", "/ready", "/status", "/workspace", "/metrics", "/openapi.json", "/runs", "/runs/{run_id}"]
    + [f"/runs/{{run_id}}/{name}" for name in ("events", "candidates", "rollouts", "frontier", "scores", "best")]
    + [f"/runs/{{run_id}}/{name}" for name in ("lineage", "rows", "turns", "turns/{turn}", "compare/{other_run_id}")]
    + ["/runs/{run_id}/report", "/ui", "/ui/", "/ui/{path}", "/views", "/views/{path}"]
    + ["/runs/{run_id}/candidates/{candidate_id}", "/runs/{run_id}/rollouts/{rollout_id}"]
    + ["/runs/{run_id}/scores/series", "/runs/{run_id}/artifacts", "/runs/{run_id}/artifacts/{name}"],
    "post": ["/runs", "/runs/preflight", "/workspace/prune", "/worker/run-next", "/worker/tick", "/worker/recover"]
    + [f"/runs/{{run_id}}/{action}" for action in ("cancel", "pause", "resume", "stop", "step")],
    "delete": ["/runs/{run_id}"],
}


def test_every_route_is_in_the_openapi_document(done: Service) -> None:
    document = done.get("/openapi.json")
    assert document["openapi"].startswith("3.1")
    described = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(method, path) for method, paths in ROUTES.items() for path in paths}
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)
    schemas = document["components"]["schemas"]

    def referred(part: object) -> None:
        if isinstance(part, Mapping):
            if "$ref" in part:
                assert part["$ref"].removeprefix("#/components/schemas/") in schemas, part
            for inner in part.values():
                referred(inner)
        elif isinstance(part, list):
            for inner in part:
                referred(inner)

    referred(document)
    for methods in document["paths"].values():
        for operation in methods.values():
            assert operation["summary"]
            error = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert error == {"$ref": "#/components/schemas/ErrorBody"}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "route_not_found"),
        ("GET", "/runs/router/nothing", 404, "route_not_found"),
        ("PUT", "/runs", 405, "method_not_allowed"),
        ("GET", "/runs/router/cancel", 405, "method_not_allowed"),
    ],
)
def test_unknown_routes_and_methods_are_refused(method: str, path: str, status: int, code: str, done: Service) -> None:
    expect_error(done.ask(method, path), status, code)


def test_every_answer_has_a_request_id(service: Service, example: Example, tmp_path: Path) -> None:
    reply = service.http.get("/health", headers={"x-request-id": "mine-1"})
    assert reply.headers["x-request-id"] == "mine-1"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert service.http.get("/health").headers["x-request-id"].startswith("req_")
    bad = service.http.get("/runs/missing", headers={"x-request-id": "mine-2"})
    assert expect_error(bad, 404, "run_not_found")["request_id"] == "mine-2"
    config = sections(tmp_path, example)
    config["gepa"]["minibatch_size"] = 0
    assert expect_error(service.submit(config), 422, "invalid_config")["request_id"].startswith("req_")
