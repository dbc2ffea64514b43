"""How long it takes until something happens: commands that do nothing, imports, and the first rollout of a run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from child import run
from own_config import own_config, write_config
from servers import HERE, container, proposer
from setting import Setting

ROWS = 20
POLL_SECONDS = 0.0005

COMMANDS = {
    "python": ("ours", ["-c", "pass"]),
    "import synth_optimizers": ("ours", ["-c", "from synth_optimizers import GepaRun"]),
    "synth-optimizers --version": ("command", ["--version"]),
    "synth-optimizers gepa run --help": ("command", ["gepa", "run", "--help"]),
    "import gepa": ("peer", ["-c", "import gepa"]),
    "import dspy": ("peer", ["-c", "import dspy"]),
}


@dataclass(frozen=True)
class Command:
    """A command that ends at once."""

    name: str

    def key(self) -> dict[str, Any]:
        """Return what tells this cell from others."""
        return {"part": "startup", "what": self.name}

    def measure(self, setting: Setting) -> dict[str, float]:
        """Run the command and return its wall time."""
        of, arguments = COMMANDS[self.name]
        programs = {"ours": setting.python, "command": setting.program, "peer": setting.peers_python}
        used = run([str(programs[of]), *arguments], setting.scratch)
        return {"wall_ms": used.wall_seconds * 1e3, "cpu_ms": used.cpu_seconds * 1e3}


@dataclass(frozen=True)
class FirstRollout:
    """A run against a container that answers: the time from the start of the process to its first rollout."""

    product: str

    def key(self) -> dict[str, Any]:
        """Return what tells this cell from others."""
        return {"part": "startup", "what": "first rollout"} | asdict(self)

    def measure(self, setting: Setting) -> dict[str, float]:
        """Start the run, and end it after its first rollout."""
        with tempfile.TemporaryDirectory(dir=setting.scratch) as name:
            place, bill = Path(name), Path(name) / "bill"
            with container(setting.programs, ROWS, 1, 1_000, "--bill", str(bill)) as url, proposer() as asked:
                command = self.command(setting, place, url, asked)
                return {"wall_ms": first_rollout(command, place, bill) * 1e3}

    def command(self, setting: Setting, place: Path, url: str, asked: str) -> list[str]:
        """Return the command of the run."""
        if self.product == "gepa":
            options = {"rows": ROWS, "needs": 1, "rollouts": 100, "reply_bytes": 1_000, "seconds": 60, "container": url}
            durable = json.dumps(options | {"directory": str(place / "state")})
            return [str(setting.peers_python), str(HERE / "peer_gepa.py"), durable]
        sections = own_config(
            container=url, proposer=asked, run_id="first", rows=ROWS, rollouts=100, workers=8, cache="readwrite"
        )
        return [str(setting.program), "gepa", "run", "--quiet", "--config", str(write_config(place, sections))]


def first_rollout(command: list[str], place: Path, bill: Path) -> float:
    """Return the seconds from the start of a command to the first line of the container's bill. End the command."""
    began = time.perf_counter()
    null = subprocess.DEVNULL
    child = subprocess.Popen(command, cwd=place, stdin=null, stdout=null, stderr=null)
    try:
        while not (bill.exists() and bill.stat().st_size):
            if child.poll() is not None and not (bill.exists() and bill.stat().st_size):
                raise RuntimeError(f"{command} ended with {child.returncode} before its first rollout")
            # The bill says when a rollout began; nothing notifies of a file that grows.
            time.sleep(POLL_SECONDS)
        return time.perf_counter() - began
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        child.wait()
