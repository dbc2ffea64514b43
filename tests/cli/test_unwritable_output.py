"""A run completes although its output cannot be written."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest
from support.example import Example
from support.polling import WAIT_TIMEOUT_SECONDS

from cli.commands import command, environment, run_cli
from cli.configs import small_config
from cli.slow_runs import RUN, events, slow_config
from cli.terminal import Terminal
from synth_optimizers.cli.live import LiveView, Panel
from synth_optimizers.cli.view import Progress


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_a_run_with_closed_stderr_completes(closed: str, example: Example, tmp_path: Path) -> None:
    small_config(tmp_path, example)
    script = f'exec "$@" {closed}'
    ended = subprocess.run(  # noqa: S603 (the program under test)
        ["/bin/sh", "-c", script, "sh", *command(*RUN)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=WAIT_TIMEOUT_SECONDS,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == ("" if ">&- " in closed else f"artifacts: {tmp_path / 'runs' / 'router'}\n")
    assert events(tmp_path)[-1]["type"] == "gepa.run.finished"
    checked = run_cli("workspace", "rebuild", "--db", "runs/router/workspace.sqlite", "--check", cwd=tmp_path)
    assert checked.code == 0


@pytest.mark.parametrize("is_shared", [False, True], ids=["stderr", "stdout-and-stderr"])
def test_a_run_whose_reader_closes_the_pipe_completes(is_shared: bool, slow_example: Example, tmp_path: Path) -> None:
    slow_config(tmp_path, slow_example, gepa__max_generations=1)
    reading, writing = os.pipe()
    with (tmp_path / "stdout").open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 (the program under test)
            command(*RUN),
            cwd=tmp_path,
            env=environment(),
            stdout=writing if is_shared else out,
            stderr=writing,
        )
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as received:
            assert received.readline()
        try:
            assert process.wait(WAIT_TIMEOUT_SECONDS) == 0
        finally:
            process.kill()
    assert events(tmp_path)[-1]["type"] == "gepa.run.finished"
    assert (tmp_path / "stdout").read_text() == ("" if is_shared else f"artifacts: {tmp_path / 'runs' / 'router'}\n")


def test_a_view_that_cannot_draw_stops_drawing(capfd: pytest.CaptureFixture[str]) -> None:
    class Broken(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += 1
            raise OSError(5, f"no terminal for {text}")

    broken = Broken()
    view = LiveView(Panel(Progress(), {}, lambda: None))
    view.console.file = broken
    view.show_line("plain", "something happened")
    tried = broken.writes
    assert tried > 0
    view.show_line("plain", "something else happened")
    view.show_notice("a sentence")
    view.close([("run", "over")])
    assert broken.writes == tried
    assert capfd.readouterr().err == ""


def test_a_run_with_an_unwritable_terminal_continues(slow_example: Example, tmp_path: Path) -> None:
    slow_config(tmp_path, slow_example, gepa__max_generations=1)
    # A process that ignores SIGHUP, as with nohup, keeps running after its terminal is closed.
    terminal = Terminal(*RUN, columns=80, cwd=tmp_path, ignore_hangup=True)
    terminal.read_until(lambda text: "in flight" in text)
    assert terminal.close() == 0
    assert events(tmp_path)[-1]["type"] == "gepa.run.finished"
