"""How busy the workers are when rollouts and proposer turns take their time, in the scenes of `bench/scenes.rs`."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from child import run
from servers import HERE, container, counts
from setting import Setting

SCENES = ("CL", "P2", "D", "E20L", "L1")
ROWS, WORKERS, LATENCY_MS, TURN_SECONDS = 100, 64, 200, 1.0
SAMPLE_SECONDS = 0.1


@dataclass(frozen=True)
class OwnScene:
    """A scene with this product, in one of its searches."""

    scene: str
    search: str

    def key(self) -> dict[str, Any]:
        """Return what tells this cell from others."""
        return {"part": "busy", "product": "ours"} | asdict(self)

    def measure(self, setting: Setting) -> dict[str, float]:
        """Run the scene and read its line."""
        used = run([str(setting.programs / "scenes"), self.scene, self.search], setting.scratch)
        return {"busy": float(used.output.split()[-1])}


@dataclass(frozen=True)
class GepaScene:
    """The scene CL with gepa: so many proposals in each iteration, and all workers for its rollouts."""

    width: int
    rollouts: int

    def key(self) -> dict[str, Any]:
        """Return what tells this cell from others."""
        return {"part": "busy", "product": "gepa over HTTP", "scene": "CL"} | asdict(self)

    def measure(self, setting: Setting) -> dict[str, float]:
        """Run gepa and sample what the container has counted."""
        flags = ["--latency-ms", str(LATENCY_MS), "--memory", "forget"]
        with (
            tempfile.TemporaryDirectory(dir=setting.scratch) as name,
            container(setting.programs, ROWS, 5, 1_000, *flags) as url,
        ):
            options: dict[str, Any] = {
                "rows": ROWS,
                "needs": 5,
                "rollouts": self.rollouts,
                "reply_bytes": 1_000,
                "seconds": 600,
            }
            options |= {"container": url, "threads": WORKERS, "directory": str(Path(name) / "state")}
            options |= {"width": self.width, "turn_seconds": TURN_SECONDS}
            command = [str(setting.peers_python), str(HERE / "peer_gepa.py"), json.dumps(options)]
            child = subprocess.Popen(command, cwd=name, stdout=subprocess.DEVNULL)
            samples = []
            try:
                while child.poll() is None:
                    samples.append(counts(url))
                    # The samples are the measurement.
                    time.sleep(SAMPLE_SECONDS)
            finally:
                child.kill()
                child.wait()
            if child.returncode:
                raise RuntimeError(f"{command} ended with {child.returncode}")
        return {"busy": middle_share(samples)}


def middle_share(samples: list[dict[str, Any]]) -> float:
    """Return the share of the workers that were busy, without the first and the last fifth of the rollouts."""

    def at(share: float) -> dict[str, Any]:
        least = share * samples[-1]["executions"]
        return next(sample for sample in samples if sample["executions"] >= least)

    began, ended = at(0.2), at(0.8)
    seconds = float(ended["elapsed_seconds"] - began["elapsed_seconds"])
    return float(ended["rollout_seconds"] - began["rollout_seconds"]) / seconds / WORKERS
