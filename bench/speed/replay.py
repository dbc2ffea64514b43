"""How long a readonly run takes that gets every answer from the cache of an earlier run."""

from __future__ import annotations

import functools
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from child import run
from overhead import FEW_ROWS, MANY_ROLLOUTS, MANY_ROWS
from own_config import own_config, write_config
from servers import container, proposer
from setting import Setting


@dataclass(frozen=True)
class Replay:
    """A readonly run of as many rollouts."""

    rollouts: int

    def key(self) -> dict[str, Any]:
        """Return what tells this cell from others."""
        return {"part": "replay"} | asdict(self)

    def measure(self, setting: Setting) -> dict[str, float]:
        """Replay the run whose answers are in the cache. It must send nothing."""
        rows, needs = MANY_ROWS if self.rollouts >= MANY_ROLLOUTS else FEW_ROWS
        # The container of the first run has ended: an answer that the cache does not have is an error.
        with container(setting.programs, rows, needs, 1_000, "--memory", "forget") as url, proposer() as asked:
            place = filled(setting, self.rollouts, rows, needs)
            used = run(command(setting, place, url, asked, "again", "readonly", self.rollouts, rows), place)
        shutil.rmtree(place / "runs/again")
        return {"wall_seconds": used.wall_seconds, "cpu_seconds": used.cpu_seconds, "peak_mb": used.peak_mb}


@functools.cache
def filled(setting: Setting, rollouts: int, rows: int, needs: int) -> Path:
    """Return a directory in which a run has filled a cache."""
    place = setting.scratch / f"replay-{rollouts}"
    place.mkdir()
    with container(setting.programs, rows, needs, 1_000, "--memory", "forget") as url, proposer() as asked:
        run(command(setting, place, url, asked, "first", "readwrite", rollouts, rows), place)
    return place


def command(
    setting: Setting, place: Path, url: str, asked: str, run_id: str, cache: str, rollouts: int, rows: int
) -> list[str]:
    """Return the command of a run that uses the cache in a directory."""
    sections = own_config(
        container=url, proposer=asked, run_id=run_id, rows=rows, rollouts=rollouts, workers=8, cache=cache
    )
    return [str(setting.program), "gepa", "run", "--quiet", "--config", str(write_config(place, sections))]
