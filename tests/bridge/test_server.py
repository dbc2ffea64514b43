"""The bridge over HTTP, as the optimizer uses it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from support.bridge import Bridge, run_command, served
from support.polling import wait_until

from synth_optimizers import bridge as bridge_module


def calls(folder: Path) -> int:
    """Return how often a function was called."""
    path = folder / "calls.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0


def ended(bridge: Bridge, rollout_id: str) -> str:
    """Wait for the end of a rollout and return its status."""

    def status() -> str | None:
        word: str = bridge.ask("GET", f"/rollouts/{rollout_id}/state").body["status"]
        return word if word not in ("queued", "running") else None

    return wait_until("the rollout ends", status)


def test_the_documents_follow_the_contract(folder: Path) -> None:
    with served(folder, "evals.py:evaluate", "--state", "state.sqlite", "--describe", "trivia") as bridge:
        metadata = bridge.ask("GET", "/metadata").body
        contract = metadata["metadata"]["optimizer_contracts"]["gepa"]
        assert contract["remembers_rollouts"] is True
        assert metadata["capabilities"]["rollout_modes"] == ["blocking", "async"]
        program = bridge.ask("GET", contract["program_route"]).body
        assert program["seed_candidate"] == {"prompt": "hello"}
        assert [module.get("mutable", False) for module in program["modules"]] == [True, False]
        assert program["program_id"].startswith("evaluate@")
        assert bridge.name == "evaluate"
        assert bridge.ask("GET", "/task_info").body["task"]["description"] == "trivia"
        task = bridge.ask("POST", "/taskset/tasks", {"split": "train", "task_ids": bridge.ids()[:1]}).body["tasks"][0]
        assert set(task) == {"task_id", "split", "question"}, "the label stays in the container"
        assert bridge.ask("GET", "/health").status == 200


def test_a_changed_function_is_a_changed_program(folder: Path) -> None:
    contents = []
    for addition in ("", "# changed\n"):
        with (folder / "evals.py").open("a") as file:
            file.write(addition)
        with served(folder, "evals.py:evaluate") as bridge:
            contents.append(bridge.ask("GET", "/program").body["modules"][1]["content"])
    assert contents[0] != contents[1]


def test_without_a_state_file_nothing_is_promised(folder: Path) -> None:
    with served(folder, "evals.py:evaluate") as bridge:
        contract = bridge.ask("GET", "/metadata").body["metadata"]["optimizer_contracts"]["gepa"]
        assert contract["remembers_rollouts"] is False
        assert bridge.rollout("r-1").body["status"] == "completed"
        assert bridge.rollout("r-1").body["status"] == "completed"
    assert calls(folder) == 1


def test_a_sync_rollout_returns_everything_that_the_function_returned(folder: Path) -> None:
    with served(folder, "evals.py:evaluate") as bridge:
        record = bridge.rollout("r-1", prompt="0").body
    assert record["status"] == "completed"
    assert record["reward_info"]["outcome_reward"] in (0.0, 1.0)
    assert record["reward_info"]["details"]["output"] == "0"
    assert record["actionable_side_info"]["feedback"].startswith("expected ")
    assert record["objective_scores"] == [{"objective": "brevity", "value": 0.5}]
    assert record["usage"] == {"prompt_tokens": 3, "cost_usd": 0.1}
    assert record["trace"] == [1, {"a": [2]}]


@pytest.mark.parametrize("function", ["named_model", "named_model_async"])
@pytest.mark.parametrize("options", [(), ("--processes",)])
def test_a_function_gets_the_policy_of_the_run(folder: Path, function: str, options: tuple[str, ...]) -> None:
    with served(folder, f"evals.py:{function}", *options) as bridge:
        policy = {"model": "m", "config": {"seed": 3}}
        record = bridge.ask("POST", "/rollouts", {**bridge.request("r-1"), "policy": policy}).body
        assert record["reward_info"]["details"]["output"] == policy
        # Without a policy of the run, a parameter with a default keeps it.
        without = {"named_model": {}, "named_model_async": "none"}[function]
        assert bridge.rollout("r-2").body["reward_info"]["details"]["output"] == without
        assert bridge.ask("POST", "/rollouts", {**bridge.request("r-3"), "policy": "m"}).status == 422


@pytest.mark.parametrize("options", [(), ("--processes",)])
def test_a_function_that_asks_for_a_later_call_is_called_again(folder: Path, options: tuple[str, ...]) -> None:
    with served(folder, "evals.py:overloaded", "--state", "state.sqlite", *options) as bridge:
        refused = bridge.rollout("r-1")
        assert (refused.status, refused.headers["retry-after"]) == (503, "2")
        assert refused.body["detail"].startswith("Overloaded: the model is overloaded (evals.py:")
        assert bridge.ask("GET", "/rollouts/r-1").status == 404
        # An async rollout was accepted, and fails.
        bridge.rollout("r-2", mode="async")
        assert ended(bridge, "r-2") == "failed"
        (folder / "gate").touch()
        assert bridge.rollout("r-1").body["status"] == "completed"
        assert bridge.rollout("r-1").body["status"] == "completed"
    assert calls(folder) == 3


@pytest.mark.parametrize("function", ["gated", "gated_async"])
def test_an_async_rollout_is_polled(folder: Path, function: str) -> None:
    with served(folder, f"evals.py:{function}") as bridge:
        assert bridge.rollout("r-1", mode="async").body["status"] in ("queued", "running")
        wait_until("the function runs", lambda: calls(folder))
        assert bridge.ask("GET", "/rollouts/r-1/state").body["status"] == "running"
        assert bridge.ask("GET", "/rollouts/r-1").body["status"] == "running"
        (folder / "gate").touch()
        assert ended(bridge, "r-1") == "completed"
        assert bridge.ask("GET", "/rollouts/r-1").body["reward_info"]["outcome_reward"] == 1


def test_a_repeated_id_gets_the_same_record_and_runs_once(folder: Path) -> None:
    with served(folder, "evals.py:gated", "--state", "state.sqlite") as bridge:
        request = bridge.request("r-1")
        replies: list[bytes] = []
        threads = [threading.Thread(target=lambda: replies.append(_raw(bridge, request))) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until("the function runs", lambda: calls(folder))
        (folder / "gate").touch()
        for thread in threads:
            thread.join()
        replies.append(_raw(bridge, {**request, "submission_mode": "async", "metadata": {}}))
        assert len(set(replies)) == 1
        conflict = bridge.ask("POST", "/rollouts", {**request, "candidate": {"prompt": "another"}})
        assert conflict.status == 409
        assert "rollout_identity_conflict" in conflict.body["detail"]
    with served(folder, "evals.py:gated", "--state", "state.sqlite") as bridge:
        assert _raw(bridge, request) == replies[0], "also after a restart"
        assert bridge.ask("POST", "/rollouts", {**request, "candidate": {"prompt": "another"}}).status == 409
    assert calls(folder) == 1


def _raw(bridge: Bridge, request: object) -> bytes:
    connection = http.client.HTTPConnection(bridge.address, timeout=60)
    connection.request("POST", "/rollouts", json.dumps(request), {"content-type": "application/json"})
    reply = connection.getresponse().read()
    connection.close()
    return reply


@pytest.mark.parametrize("options", [(), ("--processes",)])
def test_a_rollout_of_a_killed_bridge_is_not_run_again(folder: Path, options: tuple[str, ...]) -> None:
    with served(folder, "evals.py:gated", "--state", "state.sqlite", *options) as bridge:
        done = bridge.rollout_aside("r-1")
        wait_until("the function runs", lambda: calls(folder))
        bridge.kill()
        done.join()
    (folder / "gate").touch()
    with served(folder, "evals.py:gated", "--state", "state.sqlite", *options) as bridge:
        assert bridge.ask("GET", "/rollouts/r-1/state").body["status"] == "failed"
        record = bridge.rollout("r-1").body
        assert record["status"] == "failed"
        assert "may have run" in record["status_detail"]
        assert calls(folder) == 1
        assert bridge.rollout("r-2").body["status"] == "completed", "a new attempt has a new id"
    assert calls(folder) == 2


def test_two_bridges_do_not_share_a_state_file(folder: Path) -> None:
    with served(folder, "evals.py:evaluate", "--state", "state.sqlite"):
        serve = ("serve", "evals.py:evaluate", "--rows", "rows.csv", "--text", "prompt=x")
        second = run_command(folder, *serve, "--state", "state.sqlite")
    assert second.returncode == 2
    assert second.stderr.endswith("hint: End that bridge first, or name another file with --state.\n")
    assert "error[state_in_use]" in second.stderr


def test_eight_rollouts_run_at_once(folder: Path) -> None:
    with served(folder, "evals.py:gated", "--jobs", "8") as bridge:
        for number in range(10):
            bridge.rollout(f"r-{number}", mode="async")
        wait_until("eight functions run", lambda: calls(folder) == 8)
        began = time.monotonic()
        health = bridge.ask("GET", "/health")
        assert time.monotonic() - began < 5
        assert (health.body["running"], health.body["waiting"]) == (8, 2)
        (folder / "gate").touch()
        for number in range(10):
            assert ended(bridge, f"r-{number}") == "completed"
    assert calls(folder) == 10


def test_a_full_queue_answers_429(folder: Path) -> None:
    with served(folder, "evals.py:gated", "--jobs", "1") as bridge:
        request = bridge.request("r", mode="async")
        replies = [bridge.ask("POST", "/rollouts", {**request, "rollout_id": f"r-{n}"}) for n in range(258)]
        assert [reply.status for reply in replies[:257]] == [200] * 257
        assert replies[257].status == 429
        assert replies[257].headers["retry-after"] == "1"
        assert bridge.ask("GET", "/rollouts/r-257/state").status == 404, "it was refused before any work"


@pytest.mark.parametrize("options", [(), ("--processes",)])
def test_a_terminated_rollout_is_cancelled(folder: Path, options: tuple[str, ...]) -> None:
    with served(folder, "evals.py:gated", "--jobs", "1", *options) as bridge:
        for number in range(2):
            bridge.rollout(f"r-{number}", mode="async")
        wait_until("the function runs", lambda: calls(folder))
        waiting = bridge.ask("POST", "/rollouts/r-1/terminate", {"reason": "no longer needed"})
        running = bridge.ask("POST", "/rollouts/r-0/terminate", {"reason": "no longer needed"})
        assert (waiting.body["status"], running.body["status"]) == ("cancelled", "cancelled")
        (folder / "gate").touch()
        assert bridge.rollout("r-2").body["status"] == "completed", "another one takes its place"
        assert bridge.ask("GET", "/rollouts/r-0").body["status"] == "cancelled"
        assert bridge.rollout("r-1").body["status"] == "cancelled"
        assert bridge.ask("POST", "/rollouts/r-2/terminate", {}).body["status"] == "completed"
        assert bridge.ask("POST", "/rollouts/r-9/terminate", {}).status == 404
    assert calls(folder) == 2


@pytest.mark.parametrize("options", [(), ("--processes",)])
def test_a_function_that_hangs_loses_only_its_own_rollout(folder: Path, options: tuple[str, ...]) -> None:
    with served(folder, "evals.py:hang", "--timeout", "0.5", "--jobs", "1", *options) as bridge:
        for number in range(2):
            record = bridge.rollout(f"r-{number}", prompt="hang").body
            assert record["status"] == "failed"
            assert "hang did not return within 0.5 s (--timeout)" in record["status_detail"]
    with served(folder, "evals.py:hang", "--timeout", "30", "--jobs", "1", *options) as bridge:
        assert bridge.rollout("r-3").body["reward_info"]["outcome_reward"] == 0.5


def test_calls_that_hang_in_threads_are_limited(folder: Path) -> None:
    with served(folder, "evals.py:hang", "--timeout", "0.05", "--jobs", "4") as bridge:
        details = [bridge.rollout(f"r-{number}", prompt="hang").body["status_detail"] for number in range(17)]
    assert "within" in details[15]
    assert "16 calls of hang still hang; start the bridge with --processes" in details[16]


@pytest.mark.parametrize("prompt", ["hang", "block"])
def test_an_async_function_that_hangs_is_cancelled(folder: Path, prompt: str) -> None:
    with served(folder, "evals.py:hang_async", "--timeout", "0.5", "--jobs", "2") as bridge:
        assert "within 0.5 s" in bridge.rollout("r-1", prompt=prompt).body["status_detail"]
        numbers = iter(range(1000))

        def works() -> bool:
            return bool(bridge.rollout(f"again-{next(numbers)}").body["status"] == "completed")

        wait_until("the next call works, on a new loop if the old one is blocked", works)


def test_an_exception_is_a_failed_rollout_with_its_place(folder: Path) -> None:
    with served(folder, "evals.py:fail") as bridge:
        records = [bridge.rollout(f"r-{number}", row=number).body for number in range(3)]
        errors = bridge.errors()
    line = (folder / "evals.py").read_text().split("\n").index('    return row["missing"]') + 1
    for record in records:
        assert record["status"] == "failed"
        assert record["status_detail"] == f"KeyError: 'missing' (evals.py:{line} in fail)"
        assert "reward_info" not in record
        assert record["metadata"]["traceback"].count("File ") == 1, "only frames of the user"
    assert errors.count("Traceback") == 1, "once for each cause"


def test_prints_go_to_standard_error(folder: Path) -> None:
    for options in ((), ("--processes",)):
        with served(folder, "evals.py:prints", *options) as bridge:
            assert bridge.rollout("r-1").body["status"] == "completed"
            process = bridge.process
        assert process.stdout is not None
    printed = (folder / "errors.txt").read_text()
    assert printed.count("printed by the function") == printed.count("written by the function") == 2


def test_a_function_that_exits_fails_only_its_rollout(folder: Path) -> None:
    with served(folder, "evals.py:leave") as bridge:
        for number in range(3):
            detail = bridge.rollout(f"r-{number}").body["status_detail"]
            assert detail.startswith("SystemExit: the function called sys.exit(3) (evals.py:")


@pytest.mark.parametrize(("prompt", "cause"), [("die", "exit code 7"), ("kill", "signal SIGKILL")])
def test_a_worker_process_that_dies_is_replaced(folder: Path, prompt: str, cause: str) -> None:
    with served(folder, "evals.py:die", "--processes", "--jobs", "1") as bridge:
        assert bridge.rollout("r-0").body["status"] == "completed"
        record = bridge.rollout("r-1", prompt=prompt).body
        assert record["status"] == "failed"
        assert record["status_detail"] == f"the worker process ended with {cause} while die ran"
        assert bridge.rollout("r-2").body["status"] == "completed"


@pytest.mark.parametrize("options", [(), ("--processes",)])
def test_the_child_of_a_function_that_forks_does_not_answer(folder: Path, options: tuple[str, ...]) -> None:
    with served(folder, "evals.py:fork", "--state", "state.sqlite", *options) as bridge:
        for number in range(5):
            assert bridge.rollout(f"r-{number}").body["reward_info"]["outcome_reward"] == 0.25
        assert bridge.ask("GET", "/rollouts/r-0").body["status"] == "completed"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("None", "returns returned None, not a number: is a return missing?"),
        ("float('nan')", "returns returned nan, not a finite number"),
        ("10**400", "which is not one number"),
        ("'1'", "returns returned '1' (str), not a number"),
        ("{'feedback': 'x'}", "returns returned a mapping without 'score' (it has feedback)"),
        ("(1, 2, 3)", "returns returned 3 values"),
        ("{'score': 1, 'objectives': {'a': None}}", "the objective 'a' as None"),
        ("1 / 0", "ZeroDivisionError: division by zero (evals.py:"),
    ],
)
def test_a_result_that_is_no_score_is_a_failed_rollout(folder: Path, result: str, expected: str) -> None:
    with served(folder, "evals.py:returns") as bridge:
        record = bridge.rollout("r-1", prompt=result).body
    assert record["status"] == "failed"
    assert expected in record["status_detail"]
    assert "reward_info" not in record


def test_bad_requests_are_refused(folder: Path) -> None:
    with served(folder, "evals.py:evaluate") as bridge:
        good = bridge.request("r-1")
        bad: list[tuple[dict[str, object], str]] = [
            ({"rollout_id": "a/b"}, "rollout_id"),
            ({"candidate": {}}, "candidate.prompt is missing"),
            ({"candidate": {"prompt": "x", "promt": "y"}}, "Did you mean 'prompt'?"),
            ({"task": {"task_id": "nowhere"}}, "unknown row 'nowhere'"),
            ({"task": None}, "task.task_id is missing"),
            ({"submission_mode": "later"}, "submission_mode"),
        ]
        for change, words in bad:
            reply = bridge.ask("POST", "/rollouts", {**good, **change})
            assert (reply.status, words in reply.body["detail"]) == (422, True), reply
        assert bridge.ask("POST", "/rollouts", b"{").status == 400
        assert bridge.ask("POST", "/rollouts", good, {"content-type": "text/plain"}).status == 415
        assert bridge.ask("POST", "/taskset/tasks", {"split": "test", "task_ids": bridge.ids()}).status == 422
        assert bridge.ask("GET", "/rollouts").status == 405
        assert bridge.ask("GET", "/nowhere").status == 404
        assert bridge.ask("GET", "/rollouts/r-1").status == 404
        assert bridge.ask("GET", "/health").status == 200
    assert calls(folder) == 0


def test_a_large_body_is_refused_before_it_is_read(folder: Path) -> None:
    with served(folder, "evals.py:evaluate") as bridge:
        connection = http.client.HTTPConnection(bridge.address, timeout=60)
        connection.putrequest("POST", "/rollouts")
        connection.putheader("content-length", str(10**9))
        connection.endheaders()
        assert connection.getresponse().status == 413
        connection.close()


def test_a_body_that_arrives_in_pieces_is_answered_also_on_the_last_request(folder: Path) -> None:
    with served(folder, "evals.py:evaluate") as bridge:
        body = json.dumps(bridge.request("r-1")).encode()
        host, port = bridge.address.split(":")
        for close in (b"", b"connection: close\r\n"):
            head = b"POST /rollouts HTTP/1.1\r\ncontent-type: application/json\r\n" + close
            data = head + f"content-length: {len(body)}\r\n\r\n".encode() + body
            with socket.create_connection((host, int(port)), timeout=60) as channel:
                channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for place in range(0, len(data), 50):
                    channel.sendall(data[place : place + 50])
                assert channel.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_token_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_TOKEN", "secret")
    with served(folder, "evals.py:evaluate", "--token-env", "BRIDGE_TOKEN") as bridge:
        assert bridge.ask("GET", "/metadata").status == 401
        assert bridge.ask("GET", "/metadata", headers={"authorization": "Bearer secret"}).status == 200
        assert bridge.ask("GET", "/health").status == 200


def test_the_bridge_ends_with_its_standard_input(folder: Path) -> None:
    with served(folder, "evals.py:evaluate", "--watch-stdin") as bridge:
        assert bridge.process.stdin is not None
        bridge.process.stdin.close()
        assert bridge.process.wait(30) == 0


def test_a_function_of_this_process_is_served() -> None:
    seen = []

    def evaluate(prompt: str, row: dict[str, object]) -> float:
        seen.append((prompt, row["x"], os.getpid()))
        return 0.75

    rows = [{"x": number} for number in range(10)]
    with bridge_module.serve(evaluate, rows=rows, texts={"prompt": "p"}, jobs=2) as url:
        address = url.removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("GET", "/taskset")
        ids = json.loads(connection.getresponse().read())["splits"]["train"]
        body = {"rollout_id": "r-1", "candidate": {"prompt": "q"}, "task": {"task_id": ids[0]}}
        connection.request("POST", "/rollouts", json.dumps(body), {"content-type": "application/json"})
        record = json.loads(connection.getresponse().read())
        connection.close()
    assert record["reward_info"]["outcome_reward"] == 0.75
    assert [(prompt, pid) for prompt, _, pid in seen] == [("q", os.getpid())]
    with pytest.raises(bridge_module.BridgeError, match="another process cannot load it"):
        bridge_module.serve(evaluate, rows=rows, texts={"prompt": "p"}, processes=True)
