"""The rows: small diffs, generated deterministically from the snippets. No snippet is in both splits."""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path

from shared.rows import Json, TaskRow

from code_review_container.defects import KINDS, Kind

Snippets = dict[str, list[str]]

SPLITS = {"train": 40, "test": 80}
MARK = "  #!"
_NOUNS = """
    order ticket parcel invoice lesson recipe meter badge rocket lantern bridge window ladder garden mirror pocket
    signal basket candle barrel helmet island jacket kettle magnet needle packet quiver ribbon saddle"""
NOUNS = _NOUNS.split()
_MODULES = "asyncio datetime hashlib json os pickle random requests string subprocess time yaml"
MODULES = _MODULES.split()


@dataclass(frozen=True)
class Defect:
    """A planted defect: its line in the new file, and its kind."""

    line: int
    kind: Kind


@dataclass(frozen=True)
class Row(TaskRow):
    """A change to one file, and the defects planted in it."""

    path: str
    old: str
    new: str
    defects: tuple[Defect, ...]

    @cached_property
    def diff(self) -> str:
        """The change as a unified diff of the whole file."""
        lines = difflib.unified_diff(
            self.old.splitlines(), self.new.splitlines(), f"a/{self.path}", f"b/{self.path}", lineterm="", n=10_000
        )
        return "\n".join(lines)

    def task(self) -> Json:
        """Return the part of the row that the optimizer may see: the change without its defects."""
        return {**super().task(), "path": self.path, "diff": self.diff}


def new_lines(diff: str) -> list[tuple[str, bool]]:
    """Return the lines of the new file, and whether the change added them. The diff must show the whole file."""
    body = [line for line in diff.splitlines()[3:] if not line.startswith("-")]
    return [(line[1:], line.startswith("+")) for line in body]


def load_rows() -> dict[str, Row]:
    """Generate all rows by task id. They are the same every time."""
    snippets = read_snippets(Path(__file__).with_name("snippets.txt"))
    rows: dict[str, Row] = {}
    for place, (split, count) in enumerate(SPLITS.items()):
        # Every second snippet of a kind belongs to the other split.
        own = {kind: found[place::2] for kind, found in snippets.items()}
        rows |= {row.task_id: row for row in make_rows(split, count, own)}
    return rows


def read_snippets(path: Path) -> Snippets:
    """Load the snippets by the kind of their defect; those without a defect are `clean`."""
    snippets: Snippets = {}
    for section in path.read_text(encoding="utf-8").split("## ")[1:]:
        kind, _, body = section.partition("\n")
        snippets[kind] = [snippet.strip("\n") for snippet in body.strip("\n").split("\n\n")]
    return snippets


def make_rows(split: str, count: int, snippets: Snippets) -> Iterator[Row]:
    """Yield the rows of one split: each adds one to four defects and some correct code to a file."""
    dice = random.Random(f"code review {split}")  # noqa: S311 (deterministic data, not a secret)
    kinds = deck(dice, sorted(KINDS))
    decks = {kind: deck(dice, found) for kind, found in snippets.items()}
    for seed in range(count):
        wanted: list[str] = []
        for kind in kinds:
            wanted += [kind] * (kind not in wanted)
            if len(wanted) == 1 + seed % 4:
                break
        nouns = iter(dice.sample(NOUNS, len(NOUNS)))
        known = [about(next(nouns), next(decks["clean"])) for _ in range(2)]
        parts = [*wanted, *["clean"] * dice.randint(1, 2)]
        dice.shuffle(parts)
        added = [(about(next(nouns), next(decks[part])), part) for part in parts]
        yield assemble(split, seed, f"{next(nouns)}s.py", known, added)


def assemble(split: str, seed: int, path: str, known: list[str], added: list[tuple[str, str]]) -> Row:
    """Assemble a file: added parts between existing ones. In every third file, some of them replace a stub."""
    parts = [part for part, _ in added]
    modules = [name for name in MODULES if re.search(rf"\b{name}\.", "\n".join([*known, *parts]))]
    head = "\n".join([f'"""Functions of {path}."""', "", *(f"import {name}" for name in modules)]).rstrip()
    stubs = [stub_of(parts[0])] if seed % 3 == 0 else []
    old = "\n\n\n".join([head, known[0], *stubs, known[1]]) + "\n"
    marked = "\n\n\n".join([head, known[0], *parts, known[1]]) + "\n"
    places = [number for number, line in enumerate(marked.splitlines(), 1) if line.endswith(MARK)]
    kinds = [KINDS[kind] for _, kind in added if kind != "clean"]
    defects = tuple(Defect(line, kind) for line, kind in zip(places, kinds, strict=True))
    return Row(split, seed, path, old, marked.replace(MARK, ""), defects)


def stub_of(part: str) -> str:
    """Return the function of a part as a stub."""
    name = re.search(r"def (\w+)", part)
    return f"def {name[1] if name else 'later'}(*values):\n    raise NotImplementedError"


def deck(dice: random.Random, cards: list[str]) -> Iterator[str]:
    """Yield all cards in shuffled order repeatedly, so that all occur equally often."""
    return chain.from_iterable(dice.sample(cards, len(cards)) for _ in repeat(None))


def about(noun: str, snippet: str) -> str:
    """Return a snippet with a noun filled in."""
    return snippet.replace("NOUNS", f"{noun}s").replace("NOUN", noun)
