"""The tasks: an instruction, a small public example, and hidden cases that only the checks see.

`tasks.jsonl` holds the instructions and the vocabulary of the data. The data itself is generated from the task id
alone, so that a task is always the same.
"""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shared.rows import Json, TaskRow

Words = tuple[str, ...]

HERE = Path(__file__).resolve().parent
SPLITS = ("train", "test")
EXAMPLE = "example"
# A hidden case is named after its special property; checks and feedback use this name.
HIDDEN = {"one_line": 1, "ordinary": 24, "long": 160}
EXAMPLE_SIZE = 10
EXAMPLE_TRIES = 1000


@dataclass(frozen=True)
class Task(TaskRow):
    """One task. Its hidden cases never leave the container."""

    family: str
    instruction: str
    files: tuple[str, ...]
    words: Words

    @cache  # noqa: B019 (tasks live as long as the process)
    def inputs(self, case: str) -> dict[str, str]:
        """Return the files of a case. The example avoids answers that are right by accident, if possible."""
        if case != EXAMPLE:
            return self._made(case, HIDDEN[case])
        made = (self._made(f"{case}/{number}", EXAMPLE_SIZE) for number in range(EXAMPLE_TRIES))
        last: dict[str, str] = {}
        for last in made:
            texts = list(last.values())
            if reference(self.family)(texts).strip() not in accidents(texts[0]):
                break
        return last

    def _made(self, name: str, size: int) -> dict[str, str]:
        chance = random.Random(f"{self.task_id}/{name}")  # noqa: S311 (deterministic data, not a secret)
        return dict(zip(self.files, SHAPES[self.family](chance, self.words, size), strict=True))

    def example(self) -> Json:
        """Return the public part: small inputs and their output."""
        inputs = self.inputs(EXAMPLE)
        return {"input": inputs, "output": reference(self.family)(list(inputs.values()))}

    def task(self) -> Json:
        """Return the part of the task that the optimizer may see before it is solved."""
        shown = {"instruction": self.instruction, "files": list(self.files), "example": self.example()}
        return {**super().task(), **shown}


def load_tasks(path: Path = HERE / "tasks.jsonl") -> dict[str, Task]:
    """Load all tasks by task id; the row number of a task is its position in its split."""
    tasks: dict[str, Task] = {}
    count = dict.fromkeys(SPLITS, 0)
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        split = entry["split"]
        files, words = tuple(entry["files"]), tuple(entry["words"])
        task = Task(split, count[split], entry["family"], entry["instruction"], files, words)
        count[split] += 1
        tasks[task.task_id] = task
    return tasks


def accidents(text: str) -> set[str]:
    """Return trivial answers from a table: lines and keys at its edges, in any order."""
    lines = text.splitlines()
    ordered = sorted(lines)
    found = {lines[0], lines[-1], ordered[0], ordered[-1]}
    keys = sorted({line.partition(",")[0] for line in lines})
    found |= {line.partition(",")[0] for line in found} | {*keys[:2], *keys[-2:]}
    numbers = {line: int(line.partition(",")[2]) for line in lines if line.partition(",")[2].isdigit()}
    if numbers:
        sums = {key: sum(value for line, value in numbers.items() if line.startswith(f"{key},")) for key in keys}
        found |= {max(numbers, key=lambda line: numbers[line]).partition(",")[0]}
        found |= {min(numbers, key=lambda line: numbers[line]).partition(",")[0], max(keys, key=lambda key: sums[key])}
    return found


@cache
def reference(family: str) -> Callable[[list[str]], str]:
    """Return the reference solution of a family, from its checks."""
    path = HERE / "checks" / f"check_{family}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"there are no checks for the family {family!r}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    expected: Callable[[list[str]], str] = module.expected
    return expected


def _uneven(chance: random.Random, words: Words, size: int) -> list[str]:
    """Return words in random order with distinct counts at the top."""
    picked = chance.sample(words, min(len(words), 5 if size < HIDDEN["ordinary"] else len(words)))
    weights = [1.4 ** (len(picked) - place) for place in range(len(picked))]
    drawn = [*picked, *chance.choices(picked, weights, k=size)][:size]
    counts = sorted((drawn.count(word) for word in picked), reverse=True)
    if len(counts) > 1 and counts[0] == counts[1]:
        drawn.append(max(picked, key=lambda word: (drawn.count(word), word)))
    chance.shuffle(drawn)
    return drawn


def _table(chance: random.Random, words: Words, size: int) -> list[str]:
    keys = _uneven(chance, words, size)
    numbers = chance.sample(range(2, 20 * (len(keys) + 4)), len(keys))
    return [_lines(f"{key},{number}" for key, number in zip(keys, numbers, strict=True))]


def _repeats(chance: random.Random, words: Words, size: int) -> list[str]:
    pairs = [f"{first} {second}" for first in words for second in words]
    picked = chance.sample(pairs, max(1, min(size // 2, len(pairs))))
    return [_lines(chance.choices(picked, k=size))]


def _text(chance: random.Random, words: Words, size: int) -> list[str]:
    sentences = []
    for _ in range(max(1, size // 3)):
        sentence = chance.choices(words, weights=range(len(words), 0, -1), k=chance.randint(3, 7))
        sentence[chance.randrange(len(sentence) - 1)] += chance.choice(["", ",", ";"])
        sentences.append(" ".join(sentence).capitalize() + chance.choice(".!?"))
    return [_lines(sentences)]


def _log(chance: random.Random, words: Words, size: int) -> list[str]:
    levels = ["ERROR", *chance.choices(["ERROR", "INFO", "WARN"], k=size - 1)]
    if size > 1:
        levels[-1] = "INFO"
    chance.shuffle(levels)
    days = [f"2031-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}" for _ in levels]
    return [
        _lines(
            f"{day} {level} {' '.join(chance.sample(words, chance.randint(2, 4)))}"
            for day, level in zip(sorted(days), levels, strict=True)
        )
    ]


def _two_lists(chance: random.Random, words: Words, size: int) -> list[str]:
    pool = list(words) if size <= len(words) else [f"{word}{number}" for word in words for number in range(size // 4)]
    count = max(1, min(len(pool) * 2 // 3, size - 3))
    lists = [chance.sample(pool, count), chance.sample(pool, count)]
    if not set(lists[0]) & set(lists[1]):
        lists[1][0] = lists[0][0]
    return [_lines(entries) for entries in lists]


def _config(chance: random.Random, words: Words, size: int) -> list[str]:
    lines = [f"{word} = {chance.randint(1, 99)}" for word in chance.choices(words, k=max(1, size // 2))]
    lines += [f"# {word} was {chance.randint(1, 99)}" for word in chance.choices(words, k=size // 4)]
    lines += [""] * (size // 4)
    chance.shuffle(lines)
    return [_lines(lines)]


def _paths(chance: random.Random, words: Words, size: int) -> list[str]:
    endings = _uneven(chance, ("txt", "png", "pdf", "csv", "mp3"), size)
    return [
        _lines(f"{chance.choice(words)}s/{chance.choice(words)}{chance.randint(1, 99)}.{ending}" for ending in endings)
    ]


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


SHAPES: dict[str, Callable[[random.Random, Words, int], list[str]]] = {
    "count_by_key": _table,
    "sum_by_key": _table,
    "top_key": _table,
    "distinct_keys": _table,
    "total": _table,
    "largest_row": _table,
    "unique_lines": _repeats,
    "word_counts": _text,
    "error_messages": _log,
    "common_lines": _two_lists,
    "strip_config": _config,
    "extension_counts": _paths,
}
