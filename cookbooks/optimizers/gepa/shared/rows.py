"""What the rows of every task have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class TaskRow:
    """A row of a task: its split, and its place in it."""

    split: str
    seed: int

    @property
    def task_id(self) -> str:
        """Its name, such as `train:3`."""
        return f"{self.split}:{self.seed}"

    def task(self) -> Json:
        """Return what the optimizer may see of it before it is worked on; a task adds what it shows."""
        return {"task_id": self.task_id, "split": self.split, "seed": self.seed}
