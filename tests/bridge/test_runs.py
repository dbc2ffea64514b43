"""Whole runs against the bridge, which the run starts itself."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shared.brief import Brief, Proposal, find_brief_text, read_brief
from shared.reflector import MODEL, chat_reply, manifest
from support.bridge import PYTHON
from support.http_server import free_port, serve_calls

from synth_optimizers import GepaRun
from synth_optimizers.bridge import archive
from synth_optimizers.errors import RunFailedError

TASK = '''
import os, time
from pathlib import Path

def evaluate(prompt, word, label):
    """Finds a word in the prompt."""
    with Path(__file__).with_name("calls.txt").open("a") as file:
        file.write(f"{os.getpid()} {word} {hash(prompt)}\\n")
    time.sleep(0.02)
    score = float(word in prompt.split())
    return {"score": score, "feedback": "" if score else f"missing: {word}", "usage":
            {"prompt_tokens": 0, "completion_tokens": 0, "cost_usd": 0.0}}

def broken(prompt, row):
    with Path(__file__).with_name("calls.txt").open("a") as file:
        file.write(row["label"] + "\\n")
    return row["nothing"]

class Overloaded(Exception):
    retry_after = 0

REFUSED = []

def overloaded(prompt, word, label):
    if len(REFUSED) < 12:
        REFUSED.append(word)
        raise Overloaded("the model is overloaded")
    return evaluate(prompt, word, label)
'''
WORDS = ["apple", "pear", "plum", "fig", "lime"]


def propose(brief: Brief) -> list[Proposal]:
    """Add one word that a row misses."""
    missing = sorted({text.split()[-1] for row in brief.rows for text in row.feedback if "missing: " in text})
    fields = dict(brief.base)
    fields["prompt"] = " ".join([fields["prompt"], *missing[:1]])
    return [Proposal(fields, "adds a word")]


@pytest.fixture
def proposer() -> Iterator[str]:
    """Yield the address of a proposer that needs no model."""

    def answer(_: str, path: str, body: Any) -> tuple[int, Any]:
        if path.endswith("/models"):
            return 200, {"object": "list", "data": [{"id": MODEL}]}
        asked = find_brief_text(body)
        brief = read_brief(asked)
        return 200, chat_reply(asked, json.dumps(manifest(brief, propose(brief))))

    with serve_calls(answer) as url:
        yield url


def write_task(folder: Path, proposer: str, function: str = "evaluate", mode: str = "sync") -> Path:
    """Write a task of 60 rows and its configuration."""
    (folder / "task.py").write_text(TASK)
    rows = [f"{WORDS[number % len(WORDS)]},{number},{'test' if number % 3 == 0 else 'train'}" for number in range(60)]
    (folder / "rows.csv").write_text("word,label,split\n" + "\n".join(rows) + "\n")
    port = free_port()
    command = [PYTHON, str(archive()), "serve", "task.py:" + function, "--rows", "rows.csv", "--text", "prompt=apple"]
    command += ["--state", "state.sqlite", "--port", str(port), "--jobs", "4"]
    config: dict[str, dict[str, Any]] = {
        "run": {"run_id": "bridge", "output_dir": "runs", "seed": 1},
        "container": {"url": f"http://127.0.0.1:{port}", "command": command, "cwd": str(folder)},
        "dataset": {"train_seeds": list(range(40)), "heldout_seeds": list(range(20))},
        "candidate": {"target_modules": ["prompt"]},
        "policy": {"provider": "offline", "model": "none"},
        "proposer": {"backend": "openai_compatible", "base_url": f"{proposer}/v1", "model": MODEL},
        "gepa": {
            "max_generations": 4,
            "minibatch_size": 5,
            "max_total_rollouts": 400,
            "rollout_submission_mode": mode,
            "rollout_poll_interval_ms": 20,
            "rollout_max_attempts": 6,
        },
        "cache": {"mode": "off"},
    }
    lines = []
    for section, values in config.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    path = folder / "gepa.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_run_waits_for_a_function_that_asks_for_a_later_call(tmp_path: Path, proposer: str) -> None:
    found = []
    for function in ("evaluate", "overloaded"):
        folder = tmp_path / function
        folder.mkdir()
        result = GepaRun.from_toml(write_task(folder, proposer, function)).execute()
        assert (result.status, result.rollouts["failed"]) == ("completed", 0)
        found.append((result.best_candidate["payload"], result.scores.heldout_gain, result.rollouts["finished"]))
    assert found[0] == found[1]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_run_improves_the_text(tmp_path: Path, proposer: str, mode: str) -> None:
    path = write_task(tmp_path, proposer, mode=mode)
    report = GepaRun.from_toml(path).check()
    assert report.ok, report
    result = GepaRun.from_toml(path).execute()
    assert result.status == "completed"
    gain = result.scores.heldout_gain
    assert gain is not None
    assert gain.difference > 0
    counts = sum(result.rollouts[key] for key in ("train", "heldout"))
    assert len((tmp_path / "calls.txt").read_text().splitlines()) == counts


def test_the_error_of_a_run_begins_with_the_cause_in_the_function(tmp_path: Path, proposer: str) -> None:
    path = write_task(tmp_path, proposer, "broken")
    with pytest.raises(
        RunFailedError, match=r"^(\S+ )?failed: KeyError: 'nothing' \(task.py:\d+ in broken\)"
    ) as caught:
        GepaRun.from_toml(path).execute()
    # No cache is configured that another run could use.
    assert "fix the task" in caught.value.hint
    assert "cache" not in caught.value.hint
    # The circuit breaker trips when 8 rows have failed in all 6 attempts; the other 32 rows are not called.
    calls = Counter((tmp_path / "calls.txt").read_text().splitlines())
    assert list(calls.values()) == [6] * 8


def test_no_rollout_runs_twice_when_the_run_and_the_bridge_are_killed(tmp_path: Path, proposer: str) -> None:
    path = write_task(tmp_path, proposer, mode=os.environ.get("SYNTH_BRIDGE_MODE", "sync"))
    kills = int(os.environ.get("SYNTH_BRIDGE_KILLS", "4"))
    chance = random.Random(5)  # noqa: S311 (no secret)
    command = [sys.executable, "-m", "synth_optimizers.cli", "gepa", "run", "--config", str(path), "--json"]
    calls, killed = tmp_path / "calls.txt", 0
    for _ in range(kills):
        known = _lines(calls)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:  # noqa: S603
            target = known + chance.randint(1, max(2, 100 // kills))
            while process.poll() is None and _lines(calls) < target:
                os.sched_yield()
            if process.returncode is None:
                killed += 1
                process.kill()
            for bridge in _bridges(tmp_path):
                os.kill(bridge, signal.SIGKILL)
    ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert killed > kills / 2
    # Every call of the function belongs to an id of its own: the store has at least as many ids as there were calls.
    store = sqlite3.connect(tmp_path / "state.sqlite")
    states = Counter(state for (state,) in store.execute("SELECT state FROM rollouts"))
    store.close()
    assert _lines(calls) <= sum(states.values()), "a rollout ran twice"
    assert states["ended"] > 0
    assert states["running"] == 0


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def _bridges(folder: Path) -> set[int]:
    """Return the processes that run the bridge in a folder."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"serve" in words and (entry / "cwd").readlink() == folder:
                found.add(int(entry.name))
        except OSError:
            continue
    return found
