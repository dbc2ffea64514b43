"""Runs that are interrupted, watched and controlled from other processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from support.example import Example, serve_example
from support.polling import wait_until

from cli.commands import end_process, run_cli, start_cli
from cli.slow_runs import LONG, RUN, events, has_event, slow_config
from cli.terminal import Terminal
from synth_optimizers.cli.session import SignalForwarder, signal_handlers
from synth_optimizers.cli.view import View


def test_sigterm_saves_the_run(slow_example: Example, tmp_path: Path) -> None:
    slow_config(tmp_path, slow_example, **LONG)
    process = start_cli(*RUN, cwd=tmp_path)
    wait_until("a rollout", has_event(tmp_path, "rollout.finished"))
    ended = end_process(process, signal.SIGTERM)
    assert ended.code == 143
    assert ended.stdout == ""
    assert "  interrupted; the run can be resumed: SIGTERM\n" in ended.stderr
    assert "next        synth-optimizers gepa resume runs/router\n" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert events(tmp_path)[-1]["type"] == "run.interrupted"


@pytest.mark.parametrize("damage", [b'{"sequence_number": 3, "typ\n', b"\xff\xfe\n"])
def test_an_interrupted_run_with_a_damaged_feed_is_resumed(
    damage: bytes, slow_example: Example, tmp_path: Path
) -> None:
    slow_config(tmp_path, slow_example, gepa__max_generations=1)
    process = start_cli(*RUN, cwd=tmp_path)
    wait_until("a rollout", has_event(tmp_path, "rollout.finished"))
    assert end_process(process, signal.SIGTERM).code == 143
    feed = tmp_path / "runs/router/events.jsonl"
    lines = feed.read_bytes().splitlines(keepends=True)
    feed.write_bytes(b"".join([*lines[:3], damage, *lines[4:]]))
    resumed = run_cli(*RUN, cwd=tmp_path)
    assert resumed.code == 0, resumed.stderr
    assert [event["sequence_number"] for event in events(tmp_path)][:4] == [0, 1, 2, 3]
    assert events(tmp_path)[-1]["type"] == "gepa.run.finished"


def test_sighup_saves_the_run(slow_example: Example, tmp_path: Path) -> None:
    slow_config(tmp_path, slow_example, **LONG)
    process = start_cli(*RUN, cwd=tmp_path)
    wait_until("a rollout", has_event(tmp_path, "rollout.finished"))
    ended = end_process(process, signal.SIGHUP)
    assert ended.code == 129
    assert "next        synth-optimizers gepa resume runs/router\n" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert events(tmp_path)[-1]["type"] == "run.interrupted"


def test_a_closed_terminal_saves_the_run(slow_example: Example, tmp_path: Path) -> None:
    slow_config(tmp_path, slow_example, **LONG)
    terminal = Terminal(*RUN, "--json", columns=80, cwd=tmp_path)
    terminal.read_until(lambda text: "in flight" in text)
    wait_until("a rollout", has_event(tmp_path, "rollout.finished"))
    assert terminal.close() == 129
    assert events(tmp_path)[-1]["type"] == "run.interrupted"


def test_an_interrupt_under_json_is_an_error_document(slow_example: Example, tmp_path: Path) -> None:
    slow_config(tmp_path, slow_example, **LONG)
    process = start_cli(*RUN, "--json", "--quiet", cwd=tmp_path)
    wait_until("a rollout", has_event(tmp_path, "rollout.finished"))
    ended = end_process(process, signal.SIGINT)
    assert ended.code == 130
    error = json.loads(ended.stdout)["error"]
    assert error["code"] == "synth_optimizer_cancelled"
    assert "gepa resume" in error["hint"]


def test_a_run_is_watched_and_cancelled_from_other_processes(slow_example: Example, tmp_path: Path) -> None:
    slow_config(tmp_path, slow_example, **LONG)
    running = start_cli(*RUN, cwd=tmp_path)
    wait_until("a rollout", has_event(tmp_path, "rollout.finished"))
    watching = start_cli("runs", "watch", "router", cwd=tmp_path)
    listed = json.loads(run_cli("runs", "list", "--json", cwd=tmp_path).stdout)["runs"]
    assert listed[0]["state"] in ("rollout_running", "proposing", "ready", "evaluating", "rollout_queueing")
    assert listed[0]["holder"] is not None
    second = run_cli(*RUN, cwd=tmp_path)
    assert second.code == 1
    assert f"in use by pid {running.pid}" in second.stderr
    vacuum = run_cli("workspace", "vacuum", "--db", "runs/router/workspace.sqlite", cwd=tmp_path)
    assert vacuum.code == 1
    assert "hint: " in vacuum.stderr
    asked = run_cli("runs", "cancel", "router", "--reason", "enough", "--json", cwd=tmp_path)
    assert json.loads(asked.stdout)["acknowledgement"] == "accepted"
    ended, watched = end_process(running), end_process(watching)
    assert (ended.code, watched.code) == (130, 130)
    assert "run         router cancelled in " in ended.stderr
    assert "reason      enough" in watched.stderr
    assert "Traceback" not in ended.stderr + watched.stderr


def test_a_stopped_run_completes(slow_example: Example, tmp_path: Path) -> None:
    slow_config(tmp_path, slow_example, **LONG)
    running = start_cli(*RUN, cwd=tmp_path)
    wait_until("a rollout", has_event(tmp_path, "rollout.finished"))
    asked = run_cli("runs", "cancel", "router", "--stop", "--reason", "good enough", cwd=tmp_path)
    assert asked.stdout.startswith("stop of router: accepted, state ")
    ended = end_process(running)
    assert ended.code == 0
    assert "stopped by  external: good enough" in ended.stderr


def test_ending_a_watch_does_not_affect_the_run(slow_example: Example, tmp_path: Path) -> None:
    slow_config(tmp_path, slow_example, **LONG)
    running = start_cli(*RUN, "--quiet", cwd=tmp_path)
    wait_until("a rollout", has_event(tmp_path, "rollout.finished"))
    watching = start_cli("runs", "watch", "router", cwd=tmp_path)
    assert watching.stderr is not None
    seen = watching.stderr.readline()
    watched = end_process(watching, signal.SIGINT)
    assert watched.code == 130
    assert "no longer watching; the run continues" in seen + watched.stderr
    assert running.poll() is None
    ended = end_process(running, signal.SIGINT)
    assert (ended.code, ended.stdout) == (130, "")
    assert "hint: Resume it with `synth-optimizers gepa resume " in ended.stderr


def test_failing_rollouts_end_the_run_with_their_cause(tmp_path: Path) -> None:
    with serve_example(tmp_path, fail_every=1) as example:
        slow_config(tmp_path, example)
        ended = run_cli(*RUN, cwd=tmp_path)
    # The container answers, so it is the task that fails.
    assert ended.code == 1
    assert "failed; trying again: POST /rollouts answered 500: " in ended.stderr
    assert ended.stderr.count("answered 500") < 5
    assert "run         router failed in " in ended.stderr
    assert "best so far no candidate was evaluated\n" in ended.stderr
    assert "\nerror[synth_optimizer_" in ended.stderr
    assert "\nhint: " in ended.stderr
    watched = run_cli("runs", "watch", "router", cwd=tmp_path)
    assert watched.code == ended.code
    shown = run_cli("runs", "show", "router", cwd=tmp_path)
    assert "state       failed\n" in shown.stdout
    assert "\nerror       " in shown.stdout


def test_a_killed_run_is_interrupted_and_can_be_resumed(slow_example: Example, tmp_path: Path) -> None:
    slow_config(tmp_path, slow_example, gepa__max_generations=1)
    running = start_cli(*RUN, cwd=tmp_path)
    wait_until("a rollout", has_event(tmp_path, "rollout.finished"))
    assert end_process(running, signal.SIGKILL).code == -signal.SIGKILL
    listed = json.loads(run_cli("runs", "list", "--json", cwd=tmp_path).stdout)["runs"]
    assert (listed[0]["state"], listed[0]["holder"]) == ("interrupted", None)
    watched = run_cli("runs", "watch", "router", cwd=tmp_path)
    assert watched.code == 1
    assert "next        synth-optimizers gepa resume runs/router\n" in watched.stderr
    assert run_cli("gepa", "resume", "router", "--quiet", cwd=tmp_path).code == 0


def test_the_third_signal_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[str] = []
    left: list[int] = []

    def interrupt(reason: str) -> bool:
        received.append(reason)
        return True

    monkeypatch.setattr(os, "_exit", left.append)
    view = View()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signals = SignalForwarder()
    with signal_handlers(signals.receive):
        os.kill(os.getpid(), signal.SIGTERM)
        signals.attach(interrupt, view)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            signals.poll_signals()
    assert received == ["SIGTERM", "SIGTERM", "SIGTERM"]
    assert (left, signals.exit_code) == ([143], 143)
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_signal_during_attach_is_forwarded_once() -> None:
    received: list[str] = []

    def interrupt(reason: str) -> bool:
        if not received:
            received.append(reason)
            os.kill(os.getpid(), signal.SIGINT)
        else:
            received.append(reason)
        return True

    signals = SignalForwarder()
    with signal_handlers(signals.receive):
        os.kill(os.getpid(), signal.SIGINT)
        signals.attach(interrupt, View())
    assert received == ["SIGINT", "SIGINT"]


def test_an_interrupt_while_the_container_starts_is_reported(place: Path) -> None:
    config = place / "gepa.toml"
    waiting = 'command = ["sleep", "300"]\nstartup_timeout_seconds = 200'
    config.write_text(config.read_text().replace("startup_timeout_seconds = 2", waiting))
    running = start_cli(*RUN, cwd=place)
    wait_until("the run", (place / "runs" / "router" / "run.lock").exists)
    ended = end_process(running, signal.SIGINT)
    assert (ended.code, ended.stdout) == (130, "")
    assert (
        "error[synth_optimizer_cancelled]: a control request ended the run before it started: SIGINT\n" in ended.stderr
    )
    assert "hint: Nothing was sent. Run the same command to start it.\n" in ended.stderr
