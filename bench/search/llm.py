"""Compares the searches of this project with gepa on two tasks of a real language model, without a key.

The policy is SmolLM2 with 135 million parameters, as in the cookbook Banking77. The proposer is scripted. Every engine
meets the same rows, the same proposer and the same random seeds. Usage, in an environment with the packages of
`requirements.txt` and of the cookbook's `smollm2.txt`:

    python llm.py PATH_OF_SEARCH --results DIRECTORY

Each line of DIRECTORY/runs.jsonl is a run up to a mark: 200, 500 or 1,000 rollouts. All runs get to the first mark
before the next one, and a line that is there is not written again, so that an interrupted benchmark continues.
DIRECTORY/readings.sqlite keeps what the model answered for each text and row: the model is deterministic, so that an
answer is computed once. Each engine counts a rollout as a rollout, whether the answer was kept or not.

The held-out rows are scored after the run, with the best candidate that the engine declares at the mark.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "cookbooks/optimizers/gepa"))

from banking77_container import examples, tasks  # noqa: E402
from banking77_container.smollm2 import SmolLM2  # noqa: E402

OURS = ("sprint", "reference")
GEPA = ("gepa pareto", "gepa current_best")
BUDGET = 1000
MARKS = (200, 500, 1000)
FIRST_SEED = 900
SEEDS = 10

Row = tuple[str, str]
"""A query and its answer."""


@dataclass(frozen=True)
class Kind:
    """A kind of task: its initial text, its rows by answer, and how many of them are train and held-out rows."""

    name: str
    initial: str
    pool: Mapping[str, Sequence[str]]
    train: int
    heldout: int
    most_examples: int
    graded: bool

    @property
    def answers(self) -> tuple[str, ...]:
        """The answers."""
        return tuple(self.pool)

    def score(self, shares: Mapping[str, float], answer: str) -> float:
        """Return the share of the right answer, or whether it has the highest one."""
        return shares[answer] if self.graded else float(next(iter(shares)) == answer)

    def rows(self, seed: int) -> tuple[list[Row], list[Row]]:
        """Return the train and the held-out rows of a seed."""
        draw = random.Random(f"rows {self.name} {seed}")  # noqa: S311
        train: list[Row] = []
        heldout: list[Row] = []
        for answer, texts in self.pool.items():
            chosen = draw.sample(texts, self.train + self.heldout)
            train += [(text, answer) for text in chosen[: self.train]]
            heldout += [(text, answer) for text in chosen[self.train :]]
        draw.shuffle(train)
        return train, heldout


def queries(intents: Sequence[str], most: int) -> dict[str, list[str]]:
    """Return the shortest queries of each intent, which the model reads fastest."""
    found: dict[str, list[str]] = {intent: [] for intent in intents}
    for query in tasks.load_sample().queries.values():
        if query.intent in found:
            found[query.intent].append(query.text)
    return {intent: sorted(texts, key=lambda text: (len(text), text))[:most] for intent, texts in found.items()}


def words() -> dict[str, list[str]]:
    """Return the words of each kind."""
    found: dict[str, list[str]] = {}
    with (HERE / "words.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            found.setdefault(row["kind"], []).append(row["word"])
    return found


INTENTS = Kind(
    name="intents",
    initial="Name the intent of each query.",
    pool=queries(("cash_fee", "charged_twice", "pin_change", "refund_not_shown", "top_up_missing", "transfer_fee"), 20),
    train=10,
    heldout=10,
    most_examples=6,
    graded=False,
)
WORDS = Kind(
    name="words",
    initial="Name the kind of each word.",
    pool=words(),
    train=8,
    heldout=8,
    most_examples=8,
    graded=True,
)
KINDS = {kind.name: kind for kind in (INTENTS, WORDS)}


# The proposer

RULES = ("Read it carefully.", "Choose the closest name.", "Answer with one name.", "Be precise.")


def propose(kind: Kind, text: str, evidence: Sequence[tuple[Row, float]], number: str) -> str:
    """Return a proposal for a text, given the rows of the minibatch with their scores.

    One half teaches: a row with a score below 0.5 becomes the last example, or takes the place of an example that has
    its answer. The other half drops an example, moves one to the end, sets the sentence that says nothing about the
    task, or shows a row with a wrong answer. Equal questions get equal proposals.
    """
    told = json.dumps([text, evidence, number])
    draw = random.Random(hashlib.sha256(told.encode()).digest())  # noqa: S311
    instruction, shown = examples.read(text)
    failed = [row for row, score in evidence if score < 0.5 and row not in shown]
    choice = draw.random()
    if choice < 0.5 and failed:
        row = draw.choice(failed)
        same = [place for place, example in enumerate(shown) if example[1] == row[1]]
        if choice < 0.15 and same:
            shown[draw.choice(same)] = row
        else:
            append(kind, shown, row, draw)
    elif choice < 0.65 and shown:
        shown.pop(draw.randrange(len(shown)))
    elif choice < 0.75 and len(shown) > 1:
        shown.append(shown.pop(draw.randrange(len(shown) - 1)))
    elif choice < 0.85:
        rule = draw.choice([rule for rule in RULES if rule not in instruction])
        instruction = f"{kind.initial} {rule}"
    else:
        (query, answer), _ = draw.choice(evidence)
        append(kind, shown, (query, draw.choice([name for name in kind.answers if name != answer])), draw)
    return examples.with_examples(instruction, shown)


def append(kind: Kind, shown: list[Row], row: Row, draw: random.Random) -> None:
    """Add an example at the end; a full prompt loses another one."""
    if len(shown) >= kind.most_examples:
        shown.pop(draw.randrange(len(shown)))
    shown.append(row)


# The model


class Model:
    """What the model answers for a text and a query, kept in a database that processes share."""

    def __init__(self, kind: Kind, database: Path) -> None:
        self.kind = kind
        self.kept = sqlite3.connect(database, timeout=600, isolation_level=None)
        self.kept.execute("PRAGMA journal_mode = WAL")
        self.kept.execute("PRAGMA synchronous = OFF")
        self.kept.execute("CREATE TABLE IF NOT EXISTS reading (key TEXT PRIMARY KEY, shares TEXT) WITHOUT ROWID")
        self.reads = 0

    @cached_property
    def policy(self) -> SmolLM2:
        """The model, loaded when its first answer is needed."""
        return SmolLM2(self.kind.answers, workers=1)

    def shares(self, text: str, query: str) -> dict[str, float]:
        """Return the share of each answer, the most probable first."""
        key = hashlib.sha256(json.dumps([self.kind.answers, text, query]).encode()).hexdigest()
        found = self.kept.execute("SELECT shares FROM reading WHERE key = ?", (key,)).fetchone()
        if found:
            return dict(json.loads(found[0]))
        self.reads += 1
        shares = self.policy.read(text, query).shares
        self.kept.execute("INSERT OR IGNORE INTO reading VALUES (?, ?)", (key, json.dumps(shares)))
        return shares


class EnoughError(Exception):
    """The next evaluation of a run begins behind the mark."""


class Answers:
    """Answers the questions of an engine about one task and seed, up to a mark."""

    def __init__(self, model: Model, seed: int, mark: int) -> None:
        self.mark = mark
        self.rollouts = 0
        self.model = model
        self.kind = model.kind
        self.seed = seed
        train, self.heldout = self.kind.rows(seed)
        # The engines of this project evaluate their result on one held-out row; the figures do not use it.
        self.rows = [*train, self.heldout[0]]
        self.train = len(train)
        self.best: list[tuple[int, str]] = []

    def ask(self, question: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return the answer to a question."""
        text = question["text"]
        if question["ask"] == "score":
            train = sum(number < self.train for number in question["of"])
            if train and self.rollouts >= self.mark:
                raise EnoughError
            self.rollouts += train
            # Neighbours in this order begin alike, and the model reads the same beginning once.
            rows = sorted({self.rows[number] for number in question["of"]})
            scores = {row: self.score(text, row) for row in rows}
            return [scores[self.rows[number]] for number in question["of"]]
        if question["ask"] == "propose":
            evidence = [(self.rows[number], score) for number, score in question["evidence"]]
            return propose(self.kind, text, evidence, f"{self.seed} {question['turn']}")
        # The engine declares another best candidate.
        self.best.append((self.rollouts, text))
        return text

    def score(self, text: str, row: Row) -> float:
        """Return the score of a text on a row."""
        query, answer = row
        return self.kind.score(self.model.shares(text, query), answer)

    def quality(self, text: str) -> float:
        """Return the mean score of a text on the held-out rows."""
        return statistics.fmean(self.score(text, row) for row in sorted(self.heldout))


# The runs


def drive(program: str, answers: Answers, task: Mapping[str, Any]) -> dict[str, Any]:
    """Run an engine of this project once and return its line."""
    pipe = subprocess.PIPE
    engine = subprocess.Popen([program, "drive", json.dumps(task)], stdin=pipe, stdout=pipe, text=True)  # noqa: S603
    if engine.stdin is None or engine.stdout is None:
        raise RuntimeError("the engine has no pipes")
    with engine:
        try:
            for line in engine.stdout:
                told: dict[str, Any] = json.loads(line)
                if "ask" not in told:
                    return told
                engine.stdin.write(json.dumps(answers.ask(told)) + "\n")
                engine.stdin.flush()
        except EnoughError:
            engine.kill()
            raise
    raise RuntimeError(f"the engine ended without a result: {task}")


def run(program: str, model: Model, seed: int, search: str, mark: int) -> dict[str, Any]:
    """Run one engine on one task up to a mark. Return its line, with the held-out score of its best candidate there."""
    started, read_before = time.monotonic(), model.reads
    answers = Answers(model, seed, mark)
    task = {"world": model.kind.name, "rows": answers.train, "seed": seed, "initial": model.kind.initial}
    line: dict[str, Any] = {**task, "search": search, "version": version("gepa")}
    try:
        if search in OURS:
            line |= drive(program, answers, {**task, "search": search, "budget": BUDGET})
        else:
            import gepa_peer

            line |= gepa_peer.run(answers, task, search.removeprefix("gepa "), BUDGET)
    except EnoughError:
        pass
    if "end" in line and search in OURS and line["end"]["text"] != answers.best[-1][1]:
        raise RuntimeError(f"{search} ends with another candidate than its last best one")
    text = [text for rollouts, text in answers.best if rollouts <= mark][-1]
    return line | {
        "best": answers.best,
        "mark": mark,
        "score": answers.quality(text),
        "initial_score": answers.quality(model.kind.initial),
        "heldout": len(answers.heldout),
        "reads": model.reads - read_before,
        "own_seconds": round(time.monotonic() - started, 1),
    }


@cache
def model_of(name: str, database: Path) -> Model:
    """Return the model of a task, once in each process."""
    return Model(KINDS[name], database)


def work(item: tuple[str, Path, int, int, str, str]) -> dict[str, Any]:
    """Run one engine on one task up to a mark, in a process of the pool."""
    program, directory, mark, seed, name, search = item
    return run(program, model_of(name, directory / "readings.sqlite"), seed, search, mark)


def main() -> None:
    """Run what is not there yet: all runs to the first mark, then to the next one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("program", help="the program `search`")
    parser.add_argument("--results", type=Path, required=True, help="directory of the JSON lines")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / "runs.jsonl"
    known = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    done = {(line["mark"], line["seed"], line["world"], line["search"]) for line in known}
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    todo = [item for item in itertools.product(MARKS, seeds, KINDS, (*OURS, *GEPA)) if item not in done]
    items = [(options.program, options.results, *item) for item in todo]
    started = time.monotonic()
    with (
        multiprocessing.get_context("spawn").Pool(options.workers) as pool,
        path.open("a", encoding="utf-8") as out,
    ):
        for count, line in enumerate(pool.imap_unordered(work, items), 1):
            out.write(json.dumps(line) + "\n")
            out.flush()
            minutes = (time.monotonic() - started) / 60
            sys.stderr.write(
                f"{count} of {len(items)}, {minutes:.1f} min: {line['world']} {line['seed']} {line['search']} "
                f"{line['mark']}: {line['initial_score']:.3f} -> {line['score']:.3f}, {line['reads']} computed\n"
            )


if __name__ == "__main__":
    main()
