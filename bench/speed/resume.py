"""How long a killed run takes from its next start to the next rollout that it sends."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from overhead import FEW_ROWS, MANY_ROLLOUTS, MANY_ROWS
from own_config import own_config, write_config
from servers import HERE, container, counts, proposer
from setting import Setting

# The run is killed when this share of its rollouts has run.
KILLED_AT = 0.97
POLL_SECONDS = 0.002


@dataclass(frozen=True)
class Resume:
    """A run of this product, killed near its end."""

    rollouts: int

    def key(self) -> dict[str, Any]:
        """Return what tells this cell from others."""
        return {"part": "resume", "product": "ours"} | asdict(self)

    def measure(self, setting: Setting) -> dict[str, float]:
        """Run, kill and resume."""
        rows, needs = MANY_ROWS if self.rollouts >= MANY_ROLLOUTS else FEW_ROWS
        place = fresh(setting.scratch / f"resume-{self.rollouts}")
        with container(setting.programs, rows, needs, 1_000) as url, proposer() as asked:
            sections = own_config(
                container=url,
                proposer=asked,
                run_id="killed",
                rows=rows,
                rollouts=self.rollouts,
                workers=8,
                cache="off",
            )
            config = str(write_config(place, sections))
            return kill_and_resume(
                [str(setting.program), "gepa", "run", "--quiet", "--config", config], place, url, self.rollouts
            )


@dataclass(frozen=True)
class GepaResume:
    """A run of gepa with its state on disk and rollouts over HTTP, killed near its end."""

    rollouts: int

    def key(self) -> dict[str, Any]:
        """Return what tells this cell from others."""
        return {"part": "resume", "product": "gepa over HTTP"} | asdict(self)

    def measure(self, setting: Setting) -> dict[str, float]:
        """Run, kill and resume."""
        rows, needs = FEW_ROWS
        place = fresh(setting.scratch / "resume-gepa")
        with container(setting.programs, rows, needs, 1_000, "--memory", "forget") as url:
            options: dict[str, Any] = {
                "rows": rows,
                "needs": needs,
                "rollouts": self.rollouts,
                "reply_bytes": 1_000,
                "seconds": 600,
            }
            options |= {"container": url, "directory": str(place / "state")}
            command = [str(setting.peers_python), str(HERE / "peer_gepa.py"), json.dumps(options)]
            return kill_and_resume(command, place, url, self.rollouts)


def fresh(place: Path) -> Path:
    """Return an empty directory."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return place


def kill_and_resume(command: list[str], place: Path, url: str, rollouts: int) -> dict[str, float]:
    """Kill a command near the end of its run, start it again, and return when it sends its next rollout."""
    started(command, place, lambda: counts(url)["executions"] >= KILLED_AT * rollouts)
    before = counts(url)
    seconds = started(command, place, lambda: counts(url)["rollout_requests"] > before["rollout_requests"])
    shutil.rmtree(place)
    return {"seconds": seconds, "done_before": before["executions"]}


def started(command: list[str], place: Path, is_reached: Callable[[], bool]) -> float:
    """Start a command, kill it as soon as a condition holds, and return how long that took."""
    began = time.perf_counter()
    null = subprocess.DEVNULL
    child = subprocess.Popen(command, cwd=place, stdin=null, stdout=null, stderr=null)
    try:
        while not is_reached():
            if child.poll() is not None:
                raise RuntimeError(f"{command} ended with {child.returncode} before it was killed")
            # The container only counts; it notifies of nothing.
            time.sleep(POLL_SECONDS)
        return time.perf_counter() - began
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        child.wait()
