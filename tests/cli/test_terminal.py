"""A real run on a terminal: the live view, the summary, and Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.example import Example
from support.gate import gated_container
from support.polling import wait_until

from cli.commands import run_cli
from cli.slow_runs import RUN, events, has_event, slow_config
from cli.terminal import Terminal
from synth_optimizers.cli.output import CONTROL_CHARACTERS, UNSAFE_CONTROL_CHARACTERS


@pytest.mark.parametrize("columns", [80, 200])
def test_the_view_fits_the_terminal_and_ends_with_a_summary(
    columns: int, slow_example: Example, tmp_path: Path
) -> None:
    slow_config(tmp_path, slow_example, gepa__max_generations=1, gepa__max_train_rollouts=60)
    terminal = Terminal(*RUN, columns=columns, cwd=tmp_path)
    assert terminal.end() == 0
    # The last line is data: a path is printed without wrapping.
    assert max(len(line) for line in terminal.lines if not line.startswith("artifacts: ")) <= columns
    for drawn in (
        "generations  ━",
        "rollouts     ━",
        "  train      ━",
        "in flight    ",
        "usage        ",
        "frontier of ",
    ):
        assert drawn in terminal.text
    summary = terminal.text[terminal.text.rindex("run         router completed in ") :]
    for line in ("train       seed 0.", "gain +", "stopped by  max_generations (1 of 1)", "cost        $0.0000"):
        assert line in summary
    assert "next        synth-optimizers runs best runs/router --out best.txt" in summary
    assert terminal.raw.rindex(b"\x1b[?25h") > terminal.raw.rindex(b"\x1b[?25l")


def test_log_lines_are_printed_above_the_live_view(slow_example: Example, tmp_path: Path) -> None:
    slow_config(tmp_path, slow_example, gepa__max_generations=1, gepa__max_train_rollouts=60)
    terminal = Terminal(*RUN, "--log-level", "runtime=debug,warn", columns=100, cwd=tmp_path)
    assert terminal.end() == 0
    assert terminal.text.count("DEBUG runtime: rollout answered run_id=router") > 10
    # Log records and the panel never share a line.
    records = [line for line in terminal.lines if "DEBUG runtime: " in line]
    assert all(line[:2] == "20" for line in records), [line for line in records if line[:2] != "20"][:3]


def test_the_first_ctrl_c_saves_and_the_run_can_be_resumed(slow_example: Example, tmp_path: Path) -> None:
    slow_config(tmp_path, slow_example)
    terminal = Terminal(*RUN, columns=80, cwd=tmp_path)
    wait_until("a rollout", has_event(tmp_path, "rollout.finished"))
    terminal.press_ctrl_c()
    assert terminal.end() == 130
    assert max(map(len, terminal.lines)) <= 80
    assert "next        synth-optimizers gepa resume runs/router" in terminal.text
    assert "Traceback" not in terminal.text
    kinds = [event["type"] for event in events(tmp_path)]
    assert kinds[-1] == "run.interrupted"
    assert not [kind for kind in kinds if kind == "rollout.failed"]
    listed = run_cli("runs", "list", cwd=tmp_path)
    assert "interrupted" in listed.stdout
    resumed = run_cli("gepa", "resume", "runs/router", cwd=tmp_path)
    assert resumed.code == 0
    assert "  resumed after " in resumed.stderr
    assert "is the initial candidate" not in resumed.stderr
    assert events(tmp_path)[-1]["type"] == "gepa.run.finished"


def test_the_second_ctrl_c_does_not_wait(example: Example, tmp_path: Path) -> None:
    with gated_container(example) as container:
        slow_config(tmp_path, example, container__url=container.url)
        terminal = Terminal(*RUN, columns=80, cwd=tmp_path)
        terminal.read_until(lambda text: "initial evaluation of gepa_" in text)
        terminal.press_ctrl_c()
        terminal.read_until(lambda text: "interrupted: waiting for calls in flight, then saving" in text)
        terminal.press_ctrl_c()
        assert terminal.end() == 130
        assert container.answered == 1
    assert "Traceback" not in terminal.text
    assert "next        synth-optimizers gepa resume runs/router" in terminal.text


def test_no_color_disables_colours(slow_example: Example, tmp_path: Path) -> None:
    slow_config(tmp_path, slow_example, gepa__max_generations=1)
    terminal = Terminal(*RUN, columns=80, cwd=tmp_path, NO_COLOR="1")
    assert terminal.end() == 0
    assert b"\x1b[36m" not in terminal.raw
    diff = Terminal("runs", "diff", "router", columns=80, cwd=tmp_path, NO_COLOR="1")
    assert diff.end() == 0
    assert b"\x1b[3" not in diff.raw
    assert b"{+" in diff.raw
    coloured = Terminal("runs", "diff", "router", columns=80, cwd=tmp_path)
    assert coloured.end() == 0
    assert b"\x1b[32m" in coloured.raw
    assert b"{+" not in coloured.raw


def test_external_texts_cannot_control_the_terminal() -> None:
    nasty = "\x1b[31mred\x1b[2J\x1b]0;title\x07\r\ttab \x9b2J\nnext"
    assert CONTROL_CHARACTERS.sub("?", nasty) == "?[31mred?[2J?]0;title??\ttab ?2J\nnext"
    # Only this program's colour sequences remain, and only on stdout.
    assert UNSAFE_CONTROL_CHARACTERS.sub("?", nasty) == "\x1b[31mred?[2J?]0;title??\ttab ?2J\nnext"
