"""What an optimizer itself uses for a rollout: processor time, bytes written and kept, memory. Rollouts take no time.

The processor time of the command line is that of the whole process. That of the Python interface and of the peers is
without their imports. The container and the proposer are processes of their own and do not count; what a peer does in
its own process does.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from child import Used, bytes_below, run
from own_config import own_config, write_config
from servers import HERE, container, counts, proposer
from setting import Setting

COMMAND_LINE = {"plain": [], "json": ["--json"], "quiet": ["--quiet"]}
PEERS = {"gepa over HTTP": "peer_gepa.py", "gepa in process": "peer_gepa.py", "dspy in process": "peer_dspy.py"}
SMALL, LARGE = 1_000, 64_000
# Rows and rules of a row: enough of them for as many candidates as the rollouts allow.
FEW_ROWS, MANY_ROWS = (100, 5), (1_000, 1)
MANY_ROLLOUTS = 100_000
# One generation at a time, as gepa does it. By default, more than 8 workers work on several generations at once.
SERIAL = "sync_serial"
# A run that ends with less than this share of its rollouts was stopped at the time cap.
COMPLETE = 0.9


@dataclass(frozen=True)
class Cell:
    """One measured run: a product in a form, and the size of the run."""

    part: str
    product: str
    form: str
    rollouts: int
    workers: int = 8
    cache: str = "off"
    reply_bytes: int = SMALL
    search: str = "reference"
    schedule: str = "auto"

    @property
    def shape(self) -> tuple[int, int]:
        """The rows, and the rules of a row."""
        return MANY_ROWS if self.rollouts >= MANY_ROLLOUTS else FEW_ROWS

    def measure(self, setting: Setting) -> dict[str, Any]:
        """Run the product once and return what it has used."""
        rows, needs = self.shape
        with (
            tempfile.TemporaryDirectory(dir=setting.scratch) as name,
            container(setting.programs, rows, needs, self.reply_bytes, "--memory", "forget") as url,
        ):
            place = Path(name)
            used, figures = self.own(setting, place, url) if self.product == "ours" else self.peer(setting, place, url)
            done = figures["done"]
            return {
                "done": done,
                "candidates": figures["candidates"],
                "cpu_micros": figures["cpu_seconds"] / done * 1e6,
                "wall_micros": figures.get("wall_seconds", used.wall_seconds) / done * 1e6,
                "written": used.written_bytes / done,
                "kept": figures["bytes_kept"] / done,
                "peak_mb": used.peak_mb,
                "is_capped": done < COMPLETE * self.rollouts,
            }

    def own(self, setting: Setting, place: Path, url: str) -> tuple[Used, dict[str, Any]]:
        """Run this product."""
        rows, _ = self.shape
        with proposer() as asked:
            sections = own_config(
                container=url,
                proposer=asked,
                run_id="speed",
                rows=rows,
                rollouts=self.rollouts,
                workers=self.workers,
                cache=self.cache,
                search=self.search,
                schedule=self.schedule,
            )
            config = str(write_config(place, sections))
            if self.form == "api":
                used = run([str(setting.python), str(HERE / "own_api.py"), config], place)
                own = used.last_json()
                times = {"cpu_seconds": own["run_cpu_seconds"], "wall_seconds": own["run_wall_seconds"]}
            else:
                command = [str(setting.program), "gepa", "run", "--config", config, *COMMAND_LINE[self.form]]
                used = run(command, place, is_terminal=self.form == "plain")
                times = {"cpu_seconds": used.cpu_seconds}
        manifest = json.loads((place / "runs/speed/result_manifest.json").read_text(encoding="utf-8"))
        done = counts(url)["executions"]
        return used, times | {"done": done, "candidates": manifest["candidates"], "bytes_kept": bytes_below(place)}

    def peer(self, setting: Setting, place: Path, url: str) -> tuple[Used, dict[str, Any]]:
        """Run a peer, which stops at the time cap."""
        rows, needs = self.shape
        state = place / "state"
        options: dict[str, Any] = {
            "rows": rows,
            "needs": needs,
            "rollouts": self.rollouts,
            "reply_bytes": self.reply_bytes,
            "seconds": setting.cap_seconds,
        }
        if self.form == "durable":
            options["directory"] = str(state)
        if self.product == "gepa over HTTP":
            options |= {"container": url, "threads": self.workers}
        program = str(HERE / PEERS[self.product])
        used = run([str(setting.peers_python), program, json.dumps(options)], place)
        said = used.last_json()
        kept = bytes_below(state) if state.exists() else 0
        return used, {
            "done": said["rollouts"],
            "candidates": said["candidates"],
            "cpu_seconds": said["run_cpu_seconds"],
            "wall_seconds": said["run_wall_seconds"],
            "bytes_kept": kept,
        }

    def key(self) -> dict[str, Any]:
        """Return what tells this cell from others."""
        return asdict(self)
