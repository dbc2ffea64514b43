"""The samples of a session, by cell."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """The samples of one figure."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.values)

    def written(self, write: Callable[[float], str]) -> str:
        """Write the median and the range."""
        if len(self.values) == 1:
            return write(self.median)
        return f"{write(self.median)} ({write(min(self.values))} to {write(max(self.values))})"


class Samples:
    """All lines of a results file."""

    def __init__(self, path: Path) -> None:
        self.lines: list[Line] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def of(self, **key: object) -> list[Line]:
        """Return the lines of a cell."""
        return [line for line in self.lines if all(line.get(name) == value for name, value in key.items())]

    def figure(self, name: str, **key: object) -> Figure | None:
        """Return a figure of a cell, if it was measured."""
        found = tuple(float(line[name]) for line in self.of(**key))
        return Figure(found) if found else None

    def values(self, name: str, **key: object) -> list[Any]:
        """Return the different values of a name in the order of their first line."""
        return list(dict.fromkeys(line[name] for line in self.of(**key)))
