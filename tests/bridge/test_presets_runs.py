"""The examples of the frameworks: each is served with the real framework from PyPI, and a run improves its text."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from shared.launch import run_server
from support.bridge import preset_python
from support.example import EXAMPLE, ROOT, _toml
from support.http_server import free_port

from synth_optimizers import GepaRun
from synth_optimizers.bridge import archive
from synth_optimizers.bridge.main import parser

TICKETS = str(EXAMPLE / "tickets.jsonl")
OPTIONS = {
    "dspy": ("program.py:Router", "--metric", "program.py:metric", "--rows", TICKETS),
    "inspect": ("task.py@ticket_router",),
    "promptfoo": ("promptfooconfig.yaml",),
}
FIELDS = {"dspy": "router", "inspect": "system", "promptfoo": "system"}


def bridge(preset: str, command: str, *options: str) -> list[str]:
    """Return the command of the bridge for an example."""
    return [preset_python(), str(archive()), command, "--from", preset, *OPTIONS[preset], *options]


def stated_result(preset: str) -> tuple[int, int]:
    """Return by the page of an example how many of the 24 held-out tickets the best text routes, and the rollouts."""
    page = " ".join((ROOT / "examples" / preset / "README.md").read_text(encoding="utf-8").split())
    (found,) = re.findall(
        r"routes 8 of 24 held-out tickets correctly\..* routes (\d+) correctly, after (\d+) of at most 300 rollouts",
        page,
    )
    return int(found[0]), int(found[1])


@pytest.mark.parametrize("preset", sorted(OPTIONS))
def test_describe_says_what_an_example_is(preset: str) -> None:
    folder = ROOT / "examples" / preset
    done = subprocess.run(bridge(preset, "describe"), cwd=folder, capture_output=True, text=True, check=True)  # noqa: S603
    found = json.loads(done.stdout)
    assert list(found["texts"]) == [FIELDS[preset]]
    assert "- billing: invoice, payment" in found["texts"][FIELDS[preset]]
    assert found["splits"] == {"train": 48, "test": 24}
    assert found["warnings"] == []


@pytest.mark.parametrize("preset", sorted(OPTIONS))
def test_the_pages_show_the_commands_of_the_examples(preset: str) -> None:
    options = [Path(word).name if word == TICKETS else word for word in OPTIONS[preset]]
    for page in (ROOT / "docs/guides/frameworks.md", ROOT / "examples" / preset / "README.md"):
        (line,) = re.findall(rf"^python bridge.pyz serve (--from {preset} .*)$", page.read_text(), re.MULTILINE)
        shown = parser().parse_args(["serve", *shlex.split(line)])
        expected = parser().parse_args(["serve", "--from", preset, *options])
        assert (shown.function, shown.metric) == (expected.function, expected.metric)
        assert shown.rows is None or (ROOT / "examples" / preset / shown.rows).resolve() == Path(TICKETS)


@pytest.mark.parametrize("preset", sorted(OPTIONS))
def test_a_run_improves_the_text_of_an_example(preset: str, tmp_path: Path) -> None:
    folder = ROOT / "examples" / preset
    port = free_port()
    config: dict[str, Any] = tomllib.loads((folder / "gepa.toml").read_text(encoding="utf-8"))
    config["run"]["output_dir"] = str(tmp_path / "runs")
    command = bridge(preset, "serve", "--port", str(port), "--jobs", "2")
    config["container"] = {"url": f"http://127.0.0.1:{port}", "command": command, "cwd": str(folder)}
    with run_server(sys.executable, EXAMPLE / "reflector.py", "--port", "0") as reflector:
        config["proposer"]["base_url"] = reflector
        path = tmp_path / "gepa.toml"
        path.write_text(_toml(config), encoding="utf-8")
        result = GepaRun.from_toml(path).execute()
    assert result.status == "completed"
    assert result.rollouts["failed"] == 0
    initial, gain = result.scores.seed_heldout, result.scores.heldout_gain
    assert initial is not None
    assert gain is not None
    assert initial.mean == pytest.approx(8 / 24)
    tickets, rollouts = stated_result(preset)
    assert initial.mean + gain.difference == pytest.approx(tickets / 24)
    assert result.usage["rollout_calls"] == rollouts <= 300
