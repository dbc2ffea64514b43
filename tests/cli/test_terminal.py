"""A real run on a terminal: the live view, the summary, and Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import subprocess
from pathlib import Path

import pytest
from support.example import Example
from support.gate import gated_container
from support.polling import wait_until

from cli.commands import command, environment, run_cli
from cli.configs import small_config
from cli.slow_runs import RUN, events, has_event, slow_config
from cli.terminal import Terminal
from synth_optimizers.visible_text import visible_text


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


HOSTILE = (
    "Route \x1b[8mhidden\x1b[0m \x1b]0;title\x07 \x9b2J \u202edesrever\u202c \u2066x\u2069 a\u200bb\ufeff\ttab\r\nend"
)
"""A text with colour, title and control sequences, bidirectional overrides and zero-width characters."""
HIDDEN = "\x1b\x07\x9b\u202e\u202c\u2066\u2069\u200b\ufeff"


def test_hostile_characters_become_visible() -> None:
    assert visible_text(HOSTILE) == "Route ?[8mhidden?[0m ?]0;title? ?2J ?desrever? ?x? a?b?\ttab?\nend".replace(
        "?", "\N{REPLACEMENT CHARACTER}"
    )
    assert visible_text("größer ≥ 日本語 🙂\t\n") == "größer ≥ 日本語 🙂\t\n"


@pytest.fixture
def hostile_run(example: Example, tmp_path: Path) -> Path:
    """Return the place of a finished run whose best candidate is a hostile text."""
    small_config(tmp_path, example)
    assert run_cli(*RUN, "--quiet", cwd=tmp_path).code == 0
    best = json.loads((tmp_path / "runs/router/best_candidate.json").read_text())["candidate_id"]
    db = tmp_path / "runs/router/workspace.sqlite"
    with contextlib.closing(sqlite3.connect(db)) as log:
        changed = log.execute(
            "UPDATE events SET fields = json_set(fields, '$.payload.router_prompt', ?, '$.rationale', ?)"
            " WHERE type = 'candidate.registered' AND fields ->> '$.candidate_id' = ?",
            (HOSTILE, HOSTILE, best),
        )
        assert changed.rowcount == 1
        log.commit()
    assert run_cli("workspace", "rebuild", "--db", str(db), cwd=tmp_path).code == 0
    return tmp_path


def test_files_and_pipes_get_the_exact_text_and_terminals_the_visible_one(hostile_run: Path) -> None:
    piped = subprocess.run(  # noqa: S603 (the program under test)
        command("runs", "best", "router"), cwd=hostile_run, env=environment(), capture_output=True, check=True
    )
    assert run_cli("runs", "best", "router", "--out", "best.txt", cwd=hostile_run).code == 0
    assert piped.stdout == (hostile_run / "best.txt").read_bytes() == HOSTILE.encode()
    # The sequences that the commands write themselves: the colours of a diff, and what the live view draws.
    for name, own in (("best", r"$^"), ("show", r"$^"), ("diff", r"\x1b\[(0|9|31|32)m"), ("watch", r"\x1b\[(?!8m)")):
        shown = Terminal("runs", name, "router", columns=120, cwd=hostile_run)
        assert shown.end() == 0
        text = re.sub(own, "", shown.raw.decode())
        assert not set(text) & set(HIDDEN), name
        assert name not in ("best", "diff") or "\N{REPLACEMENT CHARACTER}desrever" in text


def test_error_lines_show_visible_text_only(hostile_run: Path) -> None:
    name = "\x1b[31m\u202eon\u200b"
    (hostile_run / name).mkdir()
    ended = run_cli("runs", "show", name, cwd=hostile_run)
    assert ended.code == 2
    assert "\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}on\N{REPLACEMENT CHARACTER}" in ended.stderr
    assert not set(ended.stderr) & set(HIDDEN)
