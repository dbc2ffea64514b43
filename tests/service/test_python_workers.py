"""Python workers and the service share one queue: each run is executed once, even when workers are lost."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
from cli.commands import run_cli
from support.example import Example
from support.polling import WAIT_TIMEOUT_SECONDS, wait_until
from support.service import Service, run_service

from service.python_queue import claim_request, python_process, submit_run
from service.short_runs import SETTINGS, TINY, config_file, events, feed
from synth_optimizers import (
    gepa_service_run_next,
    workspace_fail_run_request,
    workspace_heartbeat_run_request,
    workspace_recover_expired_run_requests,
    workspace_status,
)


def test_a_worker_executes_the_next_run_request(db: Path, example: Example) -> None:
    request_id = submit_run(db, example)
    done: list[dict[str, Any]] = []
    worker = threading.Thread(target=lambda: done.append(gepa_service_run_next(db, "by-hand", 60)))
    worker.start()
    worker.join(WAIT_TIMEOUT_SECONDS)
    (known,) = done
    assert (known["request"]["request_id"], known["request"]["status"]) == (request_id, "completed")
    assert known["result"]["best_candidate_id"] == known["request"]["best_candidate_id"]
    assert known["message"]
    nothing = gepa_service_run_next(db)
    assert (nothing["request"], nothing["result"]) == (None, None)


RUN_NEXT = """
import sys
from synth_optimizers import gepa_service_run_next
print(gepa_service_run_next(sys.argv[1], "child")["request"]["status"])
"""


def test_a_killed_worker_is_detected(db: Path, slow: Example) -> None:
    request_id = submit_run(db, slow)
    with python_process(RUN_NEXT, db, cwd=db.parent) as process:
        wait_until("the run", lambda: workspace_status(db)["run_requests"][0]["status"] == "running")
        assert workspace_recover_expired_run_requests(db) == []
        process.kill()
        process.wait()
    # Its lease expires in an hour, but its process is gone, which is enough.
    (taken,) = workspace_recover_expired_run_requests(db)
    assert (taken["request_id"], taken["status"]) == (request_id, "queued")
    assert gepa_service_run_next(db)["request"]["status"] == "completed"


FENCED = """
import sys
from synth_optimizers import gepa_service_run_next
known = gepa_service_run_next(sys.argv[1], "child", 1)
print(known["message"], flush=True)
"""


def test_a_worker_with_an_expired_lease_writes_nothing(db: Path, slow: Example, done: Service, tmp_path: Path) -> None:
    submit_run(db, slow, size=SETTINGS)
    sent = len(slow.rollouts())
    with python_process(FENCED, db, cwd=tmp_path) as process:
        wait_until("a batch", lambda: len(slow.rollouts()) >= sent + 10)
        process.send_signal(signal.SIGSTOP)
        try:
            with run_service(tmp_path) as service:
                # The service recovers the run after the lease of one second has expired, and completes it.
                request = service.wait("router")
                assert (request["status"], request["attempts"], request["recoveries"]) == ("completed", 2, 1)
                told, files = events(service, "router"), feed(service, "router")
                sent = len(slow.rollouts())
                process.send_signal(signal.SIGCONT)
                out, err = process.communicate(timeout=WAIT_TIMEOUT_SECONDS)
                assert out, err
                assert events(service, "router") == told
                assert feed(service, "router") == files == feed(done, "router")
                assert service.request("router") == request
                assert service.get("/workspace")["invariants"]["status"] == "pass"
        finally:
            process.send_signal(signal.SIGCONT)
    assert len(slow.rollouts()) == sent


def test_python_and_the_service_share_one_queue(db: Path, slow: Example, tmp_path: Path) -> None:
    with run_service(tmp_path) as service:
        service.run_id(config_file(tmp_path, slow, run__run_id="of-service", **TINY), auto_start=False)
        held = claim_request(db)
        assert held["run_id"] == "of-service"
        assert service.request("of-service")["lease_id"] == "lease-1"
        assert service.get("/workspace")["leases"][0]["holder"] == "caller"
        # The service lists a run request that Python claimed, but does not execute it.
        submit_run(db, slow, "of-python")
        assert service.request("of-python")["waiting"]["reason"] == "container_busy"
        assert service.ask("POST", "/runs/of-service/cancel", {"reason": "so"}).status_code == 202
        beaten = workspace_heartbeat_run_request(db, held["request_id"], "lease-1")
        assert beaten is not None
        assert beaten["waiting"]["reason"] == "stopping"
        workspace_fail_run_request(db, held["request_id"], "given up", lease_id="lease-1")
        assert service.request("of-service")["status"] == "failed"
        assert service.wait("of-python")["status"] == "completed"
        told = workspace_status(db)
        assert told["run_requests"] == service.get("/status")["run_requests"]
        shown = run_cli("workspace", "status", "--db", "service.sqlite", "--json", cwd=tmp_path)
        assert json.loads(shown.stdout)["run_request_status_counts"] == {"completed": 1, "failed": 1}


SERVE = """
import sys
from synth_optimizers import gepa_serve
try:
    gepa_serve(sys.argv[1], "127.0.0.1:0", "of-python", 60, workers=2, config_root=sys.argv[2],
               on_listening=lambda url: print(url, flush=True))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_python_serves_the_queue(db: Path, example: Example, tmp_path: Path) -> None:
    request_id = submit_run(db, example)
    with python_process(SERVE, db, tmp_path, cwd=tmp_path) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with httpx.Client(base_url=url, trust_env=False) as http:
            wait_until("readiness", lambda: http.get("/ready").status_code == 200)
            assert http.get("/ready").json()["workers"] == 2
            wait_until("the run", lambda: http.get("/runs/router").json()["request"]["is_terminal"])
            detail = http.get("/runs/router").json()
        assert (detail["request"]["request_id"], detail["request"]["status"]) == (request_id, "completed")
        assert detail["history"][1]["worker_id"] == "of-python"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_TIMEOUT_SECONDS)
    assert (process.returncode, out.strip(), err) == (0, "interrupted", "")
