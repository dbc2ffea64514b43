"""The common part of the rows of all tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class TaskRow:
    """A row of a task: its split, and its position in it."""

    split: str
    seed: int

    @property
    def task_id(self) -> str:
        """The task id, such as `train:3`."""
        return f"{self.split}:{self.seed}"

    def task(self) -> Json:
        """Return the part of the row that the optimizer may see before the rollout; a task adds its own keys."""
        return {"task_id": self.task_id, "split": self.split, "seed": self.seed}
