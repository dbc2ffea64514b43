"""Every source that reports the usage of a run reports the same numbers, whatever happened to the run."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.example import Example
from support.polling import wait_until
from support.service import Service, run_service

from service.short_runs import config_file
from service.test_metrics import fetch_metrics, metric_value
from synth_optimizers import workspace_status
from synth_optimizers.events import RunEvent
from synth_optimizers.tracking.metrics import Metrics

USED = ("prompt_tokens", "completion_tokens", "total_tokens", "sent_calls", "cached_calls", "unpriced_calls")
CALLS = ("rollout_calls", "proposer_calls", "unknown_outcomes")


@contextlib.contextmanager
def metered(example: Example) -> Iterator[str]:
    """Serve a proxy of the example's container that reports prompt and completion tokens without a total, and may fail.

    Every third rollout has an unknown cost.
    """
    upstream = urlsplit(example.container_url)
    lock, counted = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.pass_on(b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if not self.path.endswith("/rollouts"):
                self.pass_on(body)
                return
            with lock:
                counted[0] += 1
                number = counted[0]
            if number % 7 == 5:
                self.answer(500, b'{"detail":"the task broke"}')
            else:
                self.pass_on(body, number)

        def pass_on(self, body: bytes, rollout: int | None = None) -> None:
            asked = http.client.HTTPConnection(str(upstream.hostname), upstream.port or 80, timeout=30)
            with contextlib.closing(asked):
                asked.request(self.command, self.path, body or None, {"content-type": "application/json"})
                reply = asked.getresponse()
                payload = reply.read()
            if rollout is not None and reply.status == 200:
                document = json.loads(payload)
                usage: dict[str, Any] = {"prompt_tokens": 10 + rollout % 3, "completion_tokens": 2}
                if rollout % 3:
                    usage["cost_usd"] = 0.001
                document["usage"] = usage
                payload = json.dumps(document).encode()
            self.answer(reply.status, payload)

        def answer(self, status: int, payload: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            # The client may have disconnected.
            with contextlib.suppress(OSError):
                self.wfile.write(payload)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the base class)
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def tracker_metrics(service: Service, run_id: str) -> dict[str, float]:
    """Return the last value of every metric that a tracker receives for a run."""
    text = service.http.get(f"/runs/{run_id}/artifacts/events.jsonl").text
    events = [RunEvent.from_line(line) for line in text.splitlines()]
    metrics, found = Metrics(events[0]), {}
    for event in events:
        update = metrics.fold(event)
        found.update(update.metrics if update is not None else {})
    return found


def shown_by_command(place: Path, run_id: str) -> dict[str, Any]:
    """Return the output of `runs show --json` for a run."""
    command = [sys.executable, "-m", "synth_optimizers.cli", "runs", "show", str(place / "runs" / run_id), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def end_run(service: Service, run_id: str, action: str | None) -> None:
    """Wait until a run ends, or send a control request once it has evaluated the initial candidate."""
    if action is not None:
        wait_until("a candidate", lambda: has_initial_score(service, run_id))
        assert service.ask("POST", f"/runs/{run_id}/{action}", {"reason": "enough"}).status_code in (200, 202)
    service.wait(run_id)


def has_initial_score(service: Service, run_id: str) -> bool:
    """Return whether the initial candidate of a run has its score."""
    run = service.get(f"/runs/{run_id}")["run"]
    return run is not None and run["best_candidate_id"] is not None


@pytest.mark.parametrize("action", [None, "stop", "cancel"])
def test_manifest_status_service_metrics_command_and_tracker_agree(
    action: str | None, slow: Example, example: Example, tmp_path: Path
) -> None:
    with metered(slow if action else example) as container, run_service(tmp_path) as service:
        patient = {"gepa__rollout_failure_rate_tolerance": 1.0, "gepa__rollout_max_attempts": 2}
        service.run_id(config_file(tmp_path, example, container__url=container, **patient))
        end_run(service, "router", action)
        detail, known = service.get("/runs/router"), fetch_metrics(service)
        manifest = service.get("/runs/router/artifacts/result_manifest.json")
        status = workspace_status(tmp_path / "runs/router/workspace.sqlite")["runs"][0]
        command, tracker = shown_by_command(tmp_path, "router"), tracker_metrics(service, "router")

        usage = manifest["usage"]
        assert usage["total_tokens"] > usage["proposer"]["total_tokens"]
        assert usage["rollouts"]["unpriced_calls"] > 0
        assert manifest["rollouts"]["failed"] > 0
        books = {
            "status": status["usage"],
            "service": detail["usage"],
            "queue": detail["request"]["usage"],
            "command": command["usage"],
        }
        for place, book in books.items():
            for name in (*USED, *CALLS, "cost_usd", "known_cost_usd", "rollouts", "proposer"):
                assert book[name] == usage[name], (place, name)
        assert command["overview"]["cost_usd"] == detail["run"]["cost_usd"] == manifest["cost_usd"]

        rollouts = manifest["rollouts"]
        failed = (detail["run"]["rollouts_failed"], status["budget_status"]["rollouts_failed"])
        assert set(failed) == {rollouts["failed"]}
        assert command["overview"]["rollouts_failed"] == rollouts["failed"]

        assert metric_value(known, "rollouts_total", kind="finished") == rollouts["finished"]
        assert metric_value(known, "rollouts_total", kind="failed") == rollouts["failed"]
        assert metric_value(known, "tokens_total", kind="rollout") == usage["rollouts"]["total_tokens"]
        assert metric_value(known, "tokens_total", kind="proposer") == usage["proposer"]["total_tokens"]
        assert metric_value(known, "cost_usd_total") == pytest.approx(usage["known_cost_usd"])
        assert metric_value(known, "unpriced_calls_total") == usage["unpriced_calls"]

        assert tracker["total_metric_calls"] == rollouts["train"]
        assert tracker["rollouts/heldout"] == rollouts["heldout"]
        assert tracker["rollouts/failed"] == rollouts["failed"]
        assert tracker["tokens/total"] == usage["total_tokens"]
        assert usage["cost_usd"] is None
        assert math.isnan(tracker.get("cost_usd", math.nan))
        assert (tracker["calls/sent"], tracker["calls/cached"]) == (usage["sent_calls"], usage["cached_calls"])

        best = {detail["run"]["best_candidate_id"], status["best_candidate_id"], detail["request"]["best_candidate_id"]}
        assert best == {service.get("/runs/router/best")["candidate_id"]}
        assert best == {service.get("/runs/router/artifacts/best_candidate.json")["candidate_id"]}
