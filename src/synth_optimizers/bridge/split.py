"""Divides rows into train and held-out ones, names them, and hides their labels.

A row's side and its task id depend on its content and on the seed alone. Rows can be reordered or added without moving
another row to the other side.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from .errors import BridgeError, suggestion
from .rows import SourceRow
from .values import canonical

TRAIN = "train"
HELDOUT = "test"
"""The name of the held-out split on the wire, as in the default configuration of a run."""
HELDOUT_WORDS = ("heldout", "held-out", "held_out", "test", "validation", "val", "dev", "eval")
LABEL_NAMES = ("label", "labels", "answer", "answers", "expected", "target", "gold", "reference", "solution")
DEFAULT_HELDOUT_SHARE = 0.3
POWER = 7.85
"""The square of the sum of the 97.5 % and the 80 % point of the normal distribution."""
DISCORDANCE = 0.05
"""The share of rows that change without a gain: as many get better as get worse."""
RESERVED = ("task_id", "split", "row_version", "columns")
"""Keys of a task. Columns of these names are sent below `columns`."""


class Task(NamedTuple):
    """A row, its name, its side, and the part of it that the optimizer sees."""

    task_id: str
    split: str
    row: dict[str, Any]
    served: dict[str, Any]


class Taskset(NamedTuple):
    """All rows, divided."""

    tasks: dict[str, Task]
    columns: list[str]
    labels: list[str]
    split_column: str | None
    duplicates: int
    """Rows whose shown columns repeat an earlier row."""
    on_both_sides: int
    """Inputs that a split column puts on both sides."""

    def ids(self, split: str) -> list[str]:
        """Return the task ids of a split, in the order of their hashes."""
        return [task.task_id for task in self.tasks.values() if task.split == split]


def divide(
    rows: Sequence[SourceRow],
    labels: Sequence[str] | None = None,
    heldout: float = DEFAULT_HELDOUT_SHARE,
    split_column: str | None = None,
    seed: int = 0,
) -> Taskset:
    """Divide rows by their split column, or else by a hash of what is shown of them."""
    columns = list(dict.fromkeys(name for row in rows for name in row.values))
    column = _split_column(columns, split_column)
    hidden = _labels(columns, labels)
    shown = [name for name in columns if name not in hidden and name != column]
    if not shown:
        raise BridgeError(
            "labels_all",
            f"every column is a label ({', '.join(hidden)}), so nothing is left to show",
            "Name the labels with --label; all other columns are the input.",
        )
    id_column = _id_column(rows, columns, hidden)
    # Two rows with another id and the same input are duplicates.
    content = [name for name in shown if name != id_column] or shown
    groups = [_digest(seed, _normal({name: row.values.get(name) for name in content})) for row in rows]
    sides = [_side(row, column) for row in rows] if column else _hashed_sides(groups, heldout)
    sides_of: dict[str, set[str]] = {}
    for group, side in zip(groups, sides):
        sides_of.setdefault(group, set()).add(side)
    on_both_sides = sum(len(found) > 1 for found in sides_of.values())
    order = sorted(range(len(rows)), key=lambda index: (groups[index], canonical(rows[index].values)))
    tasks: dict[str, Task] = {}
    for index in order:
        row, side = rows[index].values, sides[index]
        version = _digest(0, canonical(row))[:16]
        task_id = str(row[id_column]) if id_column else _unused(f"r-{version}", tasks)
        served = _served(row, content, task_id, side, version if id_column else None)
        tasks[task_id] = Task(task_id, side, row, served)
    found = Taskset(tasks, columns, hidden, column, len(groups) - len(sides_of), on_both_sides)
    _check_sides(found, heldout)
    return found


def smallest_gain(heldout_rows: int) -> float | None:
    """Return the smallest gain in the mean of 0/1 scores that this many paired held-out rows can tell from luck.

    The test of a run finds a gain of this size in 80 % of runs if scores repeat exactly and a few rows get worse. The
    plan of a run uses the same formula. Returns `None` if the rows are too few to show any gain.
    """
    if heldout_rows < 1:
        return None
    unit = POWER / heldout_rows
    gain = (unit + math.sqrt(unit * unit + 4 * unit * DISCORDANCE)) / 2
    return gain if gain <= 1 else None


def _split_column(columns: list[str], wanted: str | None) -> str | None:
    if wanted is not None and wanted not in columns:
        raise BridgeError(
            "split_column_unknown", f"no row has the split column {wanted!r}", suggestion(wanted, columns, "Columns")
        )
    return wanted or next((name for name in columns if name.lower() == "split"), None)


def _labels(columns: list[str], wanted: Sequence[str] | None) -> list[str]:
    if wanted is None:
        return [name for name in columns if name.strip().lower() in LABEL_NAMES]
    for name in wanted:
        if name not in columns:
            raise BridgeError(
                "label_unknown", f"no row has the label column {name!r}", suggestion(name, columns, "Columns")
            )
    return list(dict.fromkeys(wanted))


def _side(row: SourceRow, column: str) -> str:
    value = row.values.get(column)
    word = value.strip().lower() if isinstance(value, str) else value
    if word in ("train", "training"):
        return TRAIN
    if word in HELDOUT_WORDS:
        return HELDOUT
    raise BridgeError(
        "split_invalid",
        f"{column!r} of {row.place} is {value!r}, not a split",
        f"Write train, or one of {', '.join(HELDOUT_WORDS)}; name another column with --split-column.",
    )


def _hashed_sides(groups: list[str], heldout: float) -> list[str]:
    if not 0 < heldout < 1:
        raise BridgeError("option_invalid", f"--heldout is {heldout}", "Write a share between 0 and 1, such as 0.3.")
    distinct = sorted(set(groups))
    border = int(heldout * 16**16)
    is_heldout = {group: int(group[:16], 16) < border for group in distinct}
    # A handful of rows may fall on one side by chance.
    if len(distinct) > 1 and len(set(is_heldout.values())) == 1:
        moved = distinct[0] if not is_heldout[distinct[0]] else distinct[-1]
        is_heldout[moved] = not is_heldout[moved]
    return [HELDOUT if is_heldout[group] else TRAIN for group in groups]


def _check_sides(found: Taskset, heldout: float) -> None:
    for split, name in ((TRAIN, "train"), (HELDOUT, "held-out")):
        if found.ids(split):
            continue
        if found.split_column is not None:
            word = TRAIN if split == TRAIN else "heldout"
            hint = f"Write {word!r} into the column {found.split_column!r} of some rows, or remove the column."
        else:
            hint = "Add rows with other inputs: rows with the same input are on the same side."
        rows = f"{len(found.tasks)} row" + ("s" if len(found.tasks) > 1 else "")
        share = f", share {heldout}" if found.split_column is None else ""
        raise BridgeError("split_empty", f"no row is {name} (of {rows}{share})", hint)


def _id_column(rows: Sequence[SourceRow], columns: list[str], hidden: list[str]) -> str | None:
    for name in ("task_id", "id"):
        if name not in columns or name in hidden:
            continue
        values = [row.values.get(name) for row in rows]
        if all(isinstance(value, (str, int)) and not isinstance(value, bool) for value in values):
            texts = [str(value) for value in values]
            usable = all(text.strip() == text and 0 < len(text) <= 128 and text.isprintable() for text in texts)
            if usable and len(set(texts)) == len(texts):
                return name
    return None


def _served(row: dict[str, Any], shown: list[str], task_id: str, side: str, version: str | None) -> dict[str, Any]:
    task: dict[str, Any] = {"task_id": task_id, "split": side}
    if version is not None:
        # The id of a row is covered by its rollout id, but a label that changes is not.
        task["row_version"] = version
    clashing: dict[str, Any] = {}
    for name in shown:
        if name in row:
            is_free = name not in RESERVED
            (task if is_free else clashing)[name] = row[name]
    if clashing:
        task["columns"] = clashing
    return task


def _unused(task_id: str, taken: dict[str, Task]) -> str:
    if task_id not in taken:
        return task_id
    count = 2
    while f"{task_id}-{count}" in taken:
        count += 1
    return f"{task_id}-{count}"


def _normal(value: Any) -> str:
    """Return a text that is the same for inputs that differ only in case and white space."""
    return " ".join(canonical(_folded(value)).split())


def _folded(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, list):
        return [_folded(item) for item in value]
    if isinstance(value, dict):
        return {key: _folded(item) for key, item in value.items()}
    return value


def _digest(seed: int, text: str) -> str:
    return hashlib.sha256(f"{seed}:{text}".encode()).hexdigest()


def mixed_types(rows: Sequence[SourceRow]) -> list[str]:
    """Return a warning for every column whose values are of several types, or that some rows do not have."""
    kinds: dict[str, Counter[str]] = {}
    for row in rows:
        for name, value in row.values.items():
            kind = "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__
            kinds.setdefault(name, Counter())[kind] += 1
    names = {"str": "text", "NoneType": "null", "bool": "boolean", "dict": "object"}
    warnings = []
    for name, counts in kinds.items():
        missing = len(rows) - sum(counts.values())
        if len([kind for kind in counts if kind != "NoneType"]) > 1:
            listed = ", ".join(f"{count} {names.get(kind, kind)}" for kind, count in counts.most_common())
            warnings.append(f"column {name!r} has values of several types: {listed}")
        if missing:
            warnings.append(f"column {name!r} is missing in {missing} of {len(rows)} rows")
    return warnings
