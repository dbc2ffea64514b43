"""The rows of the task: the bundled sample, or the real Banking77 data in a directory that the user names."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

SAMPLE = Path(__file__).with_name("sample.csv")
SPLITS = ("train", "test")


class Query(NamedTuple):
    """A customer's query and its true intent; the columns of a row."""

    task_id: str
    split: str
    text: str
    intent: str


class Data(NamedTuple):
    """All queries by task id, and all intents."""

    name: str
    queries: dict[str, Query]
    intents: tuple[str, ...]

    def ids(self) -> dict[str, list[str]]:
        """Return the task ids of each split."""
        return {split: [name for name, query in self.queries.items() if query.split == split] for split in SPLITS}


def load_sample() -> Data:
    """Load the sample: a CSV with `split`, `intent` and `text`."""
    with SAMPLE.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    pairs = {split: [(row["text"], row["intent"]) for row in rows if row["split"] == split] for split in SPLITS}
    return _data("banking_sample", pairs)


def load_real(directory: Path, train_per_intent: int, test_per_intent: int) -> Data:
    """Load `train.csv` and `test.csv` of Banking77, each with `text` and `category`.

    A fixed number of rows of each intent is taken, evenly spread over the file. Task ids do not depend on the number of
    rows in the files, as long as there are enough.
    """
    pairs = {}
    for split, most in zip(SPLITS, (train_per_intent, test_per_intent), strict=True):
        path = directory / f"{split}.csv"
        try:
            with path.open(encoding="utf-8", newline="") as lines:
                rows = [(" ".join(row["text"].split()), row["category"]) for row in csv.DictReader(lines)]
        except FileNotFoundError as error:
            raise SystemExit(f"{path} is missing: --data names a directory with train.csv and test.csv") from error
        except KeyError as error:
            raise SystemExit(f"{path} has no column {error}: it needs the columns text and category") from error
        pairs[split] = _spread(rows, most)
    return _data("banking77", pairs)


def only_intents(data: Data, intents: tuple[str, ...]) -> Data:
    """Return the queries of some intents, numbered anew."""
    pairs: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    for query in data.queries.values():
        if query.intent in intents:
            pairs[query.split].append((query.text, query.intent))
    return _data(f"{data.name}_{len(intents)}_intents", pairs)


def _spread(rows: list[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    """Return at most `most` rows of each intent, evenly spread, without repeated texts."""
    by_intent: dict[str, dict[str, None]] = {}
    for text, intent in rows:
        by_intent.setdefault(intent, {}).setdefault(text)
    picked: list[tuple[str, str]] = []
    for intent, texts in by_intent.items():
        known, count = list(texts), min(most, len(texts))
        picked.extend((known[place * len(known) // count], intent) for place in range(count))
    return picked


def _data(name: str, pairs: dict[str, list[tuple[str, str]]]) -> Data:
    found = [(f"{split}:{number}", split, *pair) for split in SPLITS for number, pair in enumerate(pairs[split])]
    queries = {query[0]: Query(*query) for query in found}
    return Data(name, queries, tuple(dict.fromkeys(query.intent for query in queries.values())))
