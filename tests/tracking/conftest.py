"""Recorded feeds and a recorded result, and no network access."""

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from synth_optimizers.events import RunEvent
from synth_optimizers.result import GepaRunResult

DATA = Path(__file__).parent.parent / "data"


def read(name: str) -> list[RunEvent]:
    """Read a feed."""
    return [RunEvent.from_line(line) for line in (DATA / name).read_text().splitlines()]


@pytest.fixture
def finished() -> list[RunEvent]:
    """Return the feed of a completed run; two of its rollouts failed and were retried."""
    return read("events.jsonl")


@pytest.fixture
def failed() -> list[RunEvent]:
    """Return the feed of a run that failed because of its proposer."""
    return read("events_failed.jsonl")


@pytest.fixture
def resumed() -> list[RunEvent]:
    """Return the feed of a run that was killed and resumed in another process."""
    return read("events_resumed.jsonl")


@pytest.fixture
def result(tmp_path: Path) -> GepaRunResult:
    """Return the result of the completed run, in a temporary directory."""
    run_dir = tmp_path / "finished-run"
    run_dir.mkdir()
    for name in ("best_candidate.json", "score_chart.svg"):
        shutil.copy(DATA / name, run_dir)
    manifest = (DATA / "result_manifest.json").read_text().replace("runs/finished-run", str(run_dir))
    (run_dir / "result_manifest.json").write_text(manifest)
    return GepaRunResult.from_run_dir(run_dir)


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the trackers in the test's directory, away from the user's settings and the network."""
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_", "OTEL_"))]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    # The subscribers set these variables; monkeypatch restores them after the test.
    for name in ("MLFLOW_DISABLE_TELEMETRY", "WANDB_ERROR_REPORTING"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    connect = socket.socket.connect

    def only_here(opened: socket.socket, address: Any) -> None:  # noqa: ANN401 (its type depends on the address family)
        is_local = opened.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1")
        assert is_local, f"a tracker wants to connect to {address}"
        connect(opened, address)

    monkeypatch.setattr(socket.socket, "connect", only_here)
