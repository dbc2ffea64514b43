"""What a measured Python program says about itself: processor time and wall time at its start and at its end."""

from __future__ import annotations

import json
import sys
import time


class Marks:
    """Takes the times of a run, without the imports before it."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.cpu_began = time.process_time()
        self.first_rollout: float | None = None

    def rollout(self) -> None:
        """Note the moment of the first rollout."""
        if self.first_rollout is None:
            self.first_rollout = time.monotonic()

    def write(self, **figures: object) -> None:
        """Write the figures of the run as a line."""
        times = {
            "run_cpu_seconds": time.process_time() - self.cpu_began,
            "run_wall_seconds": time.perf_counter() - self.began,
            "first_rollout": self.first_rollout,
        }
        sys.stdout.write(json.dumps(figures | times) + "\n")
        sys.stdout.flush()
