"""Containers that the service starts itself: one per address, and none remains after its run."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.example import CONTAINER, Example, container_python
from support.http_server import free_port
from support.polling import wait_until
from support.service import run_service

from service.short_runs import LONG, TINY, has_event, sections


def managed(
    place: Path, example: Example, changes: Mapping[str, object], *flags: str, before: str = ""
) -> dict[str, Any]:
    """Return the configuration of a run that starts its container, which writes its process id next to the database."""
    port = free_port()
    script = place / "start.py"
    command = [str(CONTAINER), "--port", str(port), *flags]
    script.write_text(
        "import os, sys, time\n"
        f"open({str(place / 'pids')!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        f"{before}\n"
        f"os.execv(sys.executable, [sys.executable, *{command!r}])\n",
        encoding="utf-8",
    )
    named = {"container__url": f"http://127.0.0.1:{port}", "container__command": [container_python(), str(script)]}
    return sections(place, example, **{**named, **changes})


def pids(place: Path) -> list[int]:
    """Return the process ids of every container that was started, in order."""
    path = place / "pids"
    return [int(line) for line in path.read_text(encoding="utf-8").split()] if path.exists() else []


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_checks_and_runs_share_one_address_in_turn(tmp_path: Path, example: Example) -> None:
    with run_service(tmp_path) as service:
        config = managed(tmp_path, example, {**TINY, "run__run_id": None})
        with ThreadPoolExecutor(4) as pool:
            checks = pool.map(lambda _: service.ask("POST", "/runs/preflight", {"config": config}), range(2))
            runs = list(pool.map(lambda _: service.run_id(config), range(2)))
            assert [check.json()["blockers"] for check in checks] == [[], []]
        for run_id in runs:
            assert service.wait(run_id)["status"] == "completed", service.request(run_id)["error"]
    # A check that finds the container of a run uses it and starts none.
    assert 3 <= len(pids(tmp_path)) <= 6
    assert [pid for pid in pids(tmp_path) if is_alive(pid)] == []


def test_a_run_whose_container_died_waits_and_does_not_block_the_next(tmp_path: Path, example: Example) -> None:
    with run_service(tmp_path, "--outage-retry-seconds", "3600") as service:
        config = managed(tmp_path, example, LONG, "--delay", "0.1")
        service.run_id(config, allow_unverified=True)
        wait_until("a rollout", has_event(service, "router", "rollout.finished"))
        os.kill(pids(tmp_path)[-1], signal.SIGKILL)
        wait_until("the run waits", lambda: (service.request("router")["waiting"] or {}).get("reason") == "outage")
        request = service.request("router")
        assert request["status"] == "queued"
        assert "the container exited" in request["waiting"]["message"]
        assert request["waiting"]["deadline_at"]
        config["run"]["run_id"] = "next"
        config["gepa"]["max_generations"] = 1
        config["dataset"]["train_seeds"] = [0, 1, 2, 3]
        service.run_id(config)
        assert service.wait("next")["status"] == "completed"
    assert [pid for pid in pids(tmp_path) if is_alive(pid)] == []


def test_the_next_service_ends_the_container_of_a_killed_check(tmp_path: Path, example: Example) -> None:
    # The container never answers, so the check waits for it.
    config = managed(tmp_path, example, {}, before="time.sleep(600)")
    with run_service(tmp_path) as service, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: service.ask("POST", "/runs/preflight", {"config": config}))
        wait_until("the container", lambda: len(pids(tmp_path)) == 1)
        [pid] = pids(tmp_path)
        # The lease is written once the container is started.
        wait_until("the lease file of the check", lambda: list((tmp_path / "service.sqlite.checks").rglob("*.json")))
        service.end(signal.SIGKILL)
        assert asked.exception() is not None
        assert is_alive(pid)
    with run_service(tmp_path):
        wait_until("the end of the orphaned container", lambda: not is_alive(pid))


def test_the_container_of_a_killed_service_is_ended_when_its_run_resumes(tmp_path: Path, example: Example) -> None:
    config = managed(tmp_path, example, LONG, "--delay", "0.1")
    with run_service(tmp_path) as service:
        service.run_id(config, allow_unverified=True)
        wait_until("a rollout", has_event(service, "router", "rollout.finished"))
        service.end(signal.SIGKILL)
    [first] = pids(tmp_path)
    with run_service(tmp_path) as service:
        wait_until("the next container", lambda: len(pids(tmp_path)) == 2)
        assert not is_alive(first)
        assert service.ask("POST", "/runs/router/cancel", {}).status_code == 202
        assert service.wait("router")["status"] == "cancelled"
    assert [pid for pid in pids(tmp_path) if is_alive(pid)] == []


@pytest.mark.parametrize(("action", "state"), [("cancel", "cancelled"), ("pause", "paused")])
def test_a_cancel_before_a_kill_ends_the_container_as_well(
    action: str, state: str, tmp_path: Path, example: Example
) -> None:
    with run_service(tmp_path) as service:
        service.run_id(managed(tmp_path, example, LONG, "--delay", "10"), allow_unverified=True)
        wait_until("a rollout", has_event(service, "router", "rollout.requested"))
        assert service.ask("POST", f"/runs/router/{action}", {"reason": "so"}).status_code == 202
        service.end(signal.SIGKILL)
    [pid] = pids(tmp_path)
    assert is_alive(pid)
    with run_service(tmp_path) as service:
        service.wait("router", state)
        wait_until("the end of the container", lambda: not is_alive(pid))
        if state == "cancelled":
            wait_until("the end of the run", lambda: service.get("/runs/router")["run"]["state"] == "cancelled")


def test_a_check_does_not_delay_a_run_at_the_same_address(tmp_path: Path, example: Example) -> None:
    config = managed(tmp_path, example, TINY)
    slow = {**config, "run": {**config["run"], "run_id": "checked"}, "container": {**config["container"]}}
    slow["container"]["command"] = ["sleep", "600"]
    slow["container"]["startup_timeout_seconds"] = 300
    with run_service(tmp_path) as service, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: service.ask("POST", "/runs/preflight", {"config": slow}))
        wait_until("the lease file of the check", lambda: list((tmp_path / "service.sqlite.checks").rglob("*.json")))
        # A run that skips preflight does not wait for the container lock.
        service.run_id(config, allow_unverified=True)
        assert service.wait("router")["status"] == "completed"
        # The check continues with the container that runs then.
        assert asked.result().status_code == 200
