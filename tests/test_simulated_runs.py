"""The commands and the trackers show the totals that simulated runs must have, whatever happened in them.

The program `simulated_runs` of the Rust test support writes the run directories, and computes the expected totals from
the logs on its own. `every_document_shows_the_same_totals` compares the documents that the core writes.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from synth_optimizers import workspace_status
from synth_optimizers._synth_optimizers import EventLog
from synth_optimizers.cli.view import Progress
from synth_optimizers.events import RunEvent
from synth_optimizers.tracking.metrics import Metrics

COUNT = 14
USAGE = ("prompt_tokens", "completion_tokens", "total_tokens", "sent_calls", "cached_calls", "unpriced_calls")
CALLS = ("unknown_outcomes", "rollout_calls", "proposer_calls")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with simulated runs."""
    program = os.environ.get("SYNTH_E2E_SIMULATED_RUNS")
    if program is None:
        raise RuntimeError(
            "SYNTH_E2E_SIMULATED_RUNS is not set: run `make py-test`, which builds the program and sets it"
        )
    directory = tmp_path_factory.mktemp("simulated")
    subprocess.run([program, directory, str(COUNT)], check=True, timeout=120)  # noqa: S603
    return directory


def tracker_metrics(run_dir: Path) -> dict[str, float]:
    """Return the last value of every metric that a tracker receives for a run."""
    events = [RunEvent.from_line(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    metrics, found = Metrics(events[0]), {}
    for event in events:
        update = metrics.fold(event)
        found.update(update.metrics if update is not None else {})
    return found


@pytest.mark.parametrize("number", range(COUNT))
def test_runs_show_status_and_trackers_show_the_expected_totals(number: int, simulated: Path) -> None:
    run_dir = simulated / f"run-{number}"
    expected: dict[str, Any] = json.loads((simulated / "expected.json").read_text())[run_dir.name]
    command = [sys.executable, "-m", "synth_optimizers.cli", "runs", "show", str(run_dir), "--json"]
    shown = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)  # noqa: S603
    status = workspace_status(run_dir / "workspace.sqlite")["runs"][0]
    manifest = json.loads((run_dir / "result_manifest.json").read_text())
    for usage in (shown["usage"], status["usage"], manifest["usage"]):
        assert {name: usage[name] for name in (*USAGE, *CALLS)} == {
            name: expected.get(name, 0) for name in (*USAGE, *CALLS)
        }
        assert usage["cost_usd"] == expected["cost_usd"]
    assert shown["overview"]["rollouts_failed"] == expected.get("rollouts_failed", 0)

    tracker = tracker_metrics(run_dir)
    assert tracker["total_metric_calls"] == expected.get("train", 0)
    assert tracker["rollouts/heldout"] == expected.get("heldout", 0)
    assert tracker["rollouts/failed"] == expected.get("rollouts_failed", 0)
    calls = {"calls/sent": "sent_calls", "calls/cached": "cached_calls", "tokens/total": "total_tokens"}
    assert {metric: tracker[metric] for metric in calls} == {
        metric: expected.get(name, 0) for metric, name in calls.items()
    }
    if expected["cost_usd"] is None:
        assert math.isnan(tracker.get("cost_usd", math.nan))
    else:
        assert tracker["cost_usd"] == expected["cost_usd"]


@pytest.mark.parametrize("number", range(COUNT))
def test_a_log_that_the_core_reads_has_the_lines_and_totals_of_its_events(number: int, simulated: Path) -> None:
    run_dir = simulated / f"run-{number}"
    each, whole, log = Progress(), Progress(), EventLog(run_dir)
    events = map(RunEvent.from_line, (run_dir / "events.jsonl").read_text().splitlines())
    lines = [line for event in events for line in each.apply(event)]
    assert whole.read(log) == lines
    assert whole.read(log) == []
    assert (whole.events, whole.latest, whole.final_event) == (each.events, each.latest, each.final_event)
    assert (whole.fold.totals(), whole.fold.shown()) == (each.fold.totals(), each.fold.shown())
    assert whole.fold.search() == each.fold.search()
