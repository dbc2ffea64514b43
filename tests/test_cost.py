"""What a rollout costs: instructions, bytes written and bytes kept, compared with the figures of `data/cost.json`.

Each figure is the difference between a longer and a shorter run, so that the start does not count. Instructions are
counted by Valgrind and bytes by the system: neither depends on the load of the machine. A figure that is worse than the
stored one by more than 15 % fails. After a change for the better, or one that is worth its cost, SYNTH_UPDATE_COST=1
writes the new figures.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.http_server import serve_calls

COSTS = Path(__file__).parent / "data/cost.json"
WORSE = 1.15
ROWS, NEEDS, SHORT, LONG = 50, 5, 100, 300


@dataclass(frozen=True)
class Servers:
    """The container and the proposer of the measured runs."""

    container: str
    proposer: str


def propose(method: str, _path: str, body: Any) -> tuple[int, Any]:  # noqa: ANN401 (any JSON value)
    """Answer like a model that adds the first rule that a row of the minibatch misses."""
    if method == "GET":
        return 200, {"data": [{"id": "scripted"}]}
    rules = re.findall(r"missing rule: (r\d+)", str(body["messages"]))
    edit = {"operation": "append", "find": "", "text": min(rules, default="Be brief.")}
    manifest = {"proposals": [{"proposed_payload": {}, "edits": {"instructions": [edit]}}]}
    message = {"role": "assistant", "content": json.dumps(manifest)}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return 200, {"model": "scripted", "choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Serve the task and the proposer."""
    program = os.environ.get("SYNTH_E2E_SIMULATED_RUNS")
    if program is None:
        raise RuntimeError("SYNTH_E2E_SIMULATED_RUNS is not set: run `make py-test`, which builds the programs")
    stub: list[str | Path] = [Path(program).with_name("stub_container"), "--watch-stdin", "--memory", "forget"]
    task = ["--train", str(ROWS), "--heldout", "2", "--needs", str(NEEDS)]
    with (
        subprocess.Popen([*stub, *task], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child,  # noqa: S603
        serve_calls(propose) as proposer,
    ):
        assert child.stdout is not None
        yield Servers(f"http://127.0.0.1:{int(child.stdout.readline())}", proposer)
        child.kill()


def run(servers: Servers, place: Path, rollouts: int, workers: int, tool: Sequence[str] = ()) -> tuple[int, int, str]:
    """Run `gepa run --quiet`, and return the bytes written, the bytes kept and what the tool has said."""
    sections: dict[str, dict[str, Any]] = {
        "run": {"run_id": f"cost-{rollouts}", "output_dir": str(place), "seed": 7},
        "container": {"url": servers.container},
        "taskset": {"train_ids": [f"train:{row}" for row in range(ROWS)], "heldout_ids": ["test:0", "test:1"]},
        "candidate": {"target_modules": ["instructions"]},
        "policy": {"model": "gpt-4.1-nano"},
        "proposer": {"backend": "openai_compatible", "base_url": f"{servers.proposer}/v1", "model": "scripted"},
        "cache": {"mode": "off"},
        "disk_budget": {"enabled": False},
        "gepa": {"search": "reference", "minibatch_size": 3, "max_total_rollouts": rollouts},
    }
    lines = [
        line
        for name, values in sections.items()
        for line in (f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()))
    ]
    lines += ["leakage = { policy = 'allow' }", f"pipeline = {{ workers = {{ rollout = {workers} }} }}"]
    config = place / f"{rollouts}.toml"
    config.write_text("\n".join(lines), encoding="utf-8")
    command = [*tool, sys.executable, "-m", "synth_optimizers.cli", "gepa", "run", "--quiet", "--config", str(config)]
    with (place / f"{rollouts}.out").open("w+") as said:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=place)  # noqa: S603
        # The process has ended and can still be asked.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        written = re.findall(r"wchar: (\d+)", Path(f"/proc/{child.pid}/io").read_text(encoding="ascii"))
        status = child.wait()
        said.seek(0)
        text = said.read()
    assert status == 0, text
    kept = sum(path.stat().st_size for path in (place / f"cost-{rollouts}").rglob("*") if path.is_file())
    return int(written[0]), kept, text


def worse(figures: dict[str, float], stored: dict[str, float]) -> list[str]:
    """Return the figures of a rollout that are worse than the stored ones."""
    return [
        f"{name} of a rollout: {value:,.0f}, {value / stored[name]:.2f} times the stored {stored[name]:,.0f}"
        for name, value in figures.items()
        if value > WORSE * stored[name]
    ]


def check(figures: dict[str, float]) -> None:
    """Compare figures of a rollout with the stored ones, or store them."""
    stored = json.loads(COSTS.read_text(encoding="utf-8"))
    if os.environ.get("SYNTH_UPDATE_COST"):
        COSTS.write_text(json.dumps(stored | figures, indent=2) + "\n", encoding="utf-8")
        return
    found = worse(figures, stored)
    assert not found, f"{'; '.join(found)}. If the change is worth it, SYNTH_UPDATE_COST=1 stores the new figures"


def test_a_figure_that_is_more_than_15_percent_worse_is_named() -> None:
    stored = {"bytes kept": 1000.0, "bytes written": 1000.0}
    found = worse({"bytes kept": 1149, "bytes written": 1151}, stored)
    assert found == ["bytes written of a rollout: 1,151, 1.15 times the stored 1,000"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts the bytes of a process as Linux does")
def test_a_rollout_writes_and_keeps_as_many_bytes_as_before(servers: Servers, tmp_path: Path) -> None:
    # With one worker, every commit has one answer, whatever the timing.
    (written, kept, _), (more_written, more_kept, _) = (run(servers, tmp_path, size, 1) for size in (SHORT, LONG))
    rollouts = LONG - SHORT
    check(
        {
            "bytes written": round((more_written - written) / rollouts),
            "bytes kept": round((more_kept - kept) / rollouts),
        }
    )


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs Valgrind, which counts instructions")
def test_a_rollout_takes_as_many_instructions_as_before(servers: Servers, tmp_path: Path) -> None:
    def count(rollouts: int) -> int:
        tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
        _, _, said = run(servers, tmp_path, rollouts, 8, tool)
        (instructions,) = re.findall(r"I +refs: +([\d,]+)", said)
        return int(instructions.replace(",", ""))

    with ThreadPoolExecutor(2) as both:
        short, long = both.map(count, (SHORT, LONG))
    check({"instructions": round((long - short) / (LONG - SHORT))})
