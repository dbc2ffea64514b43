"""Runs gepa on the scripted tasks of this benchmark and writes the same JSON lines as `search run`.

The tasks come from `search serve`: gepa's adapter asks it for scores and for proposals, so that gepa meets the same
rows, the same proposer and the same kind of noise as this project, and no language model takes part. Usage, in an
environment with the packages of `requirements.txt`:

    python gepa_peer.py PATH_OF_SEARCH '{"worlds": ["rule"], "rows": [50], "noise": [0.1], "seeds": 30}'

`llm.py` uses the same adapter and answers its questions with a language model.

A list of plans runs one after the other. `search` in a plan names gepa's rules for the choice of parents: `pareto` is
its default, `current_best` the other one. The lines name them `gepa pareto` and `gepa current_best`. `pareto x8` and
`current_best x8` are the same with eight proposals in each iteration, as gepa offers it for parallel work. Everything
else is gepa's default, in particular:

* `skip_perfect_score`: gepa pays for the parent on a minibatch, and drops the minibatch if every score is 1.0.
* No cache: each evaluation is a new rollout with noise of its own. The number of the evaluation is its `repeat`.
* Every child that beats its parent on the minibatch is evaluated on all rows. gepa's best is the first one with the
  highest mean on them, and the timeline has the true quality of that candidate.
* gepa looks at its budget between iterations, so that its last evaluation may exceed it.

Time is simulated as in `search run`: 64 workers, 200 ms for a rollout, 1 s for a proposer turn. What gepa asks for at
once runs at once, and the turns of one iteration run side by side.
"""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Protocol

import gepa
from gepa.core.adapter import EvaluationBatch, GEPAAdapter
from gepa.strategies.proposal_sampling import IndependentSampling, SameParentSampling

INITIAL = "Answer the question."
FIELD = "prompt"
MINIBATCH = 3
ROLLOUT_SECONDS = 0.2
PROPOSER_SECONDS = 1.0
WORKERS = 64


class Answers(Protocol):
    """Answers questions about tasks: scores, proposals, and what the timeline records of a text (`quality`)."""

    def ask(self, question: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return the answer to a question."""


class Server:
    """The process that answers questions about the tasks."""

    def __init__(self, program: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([program, "serve"], stdin=pipe, stdout=pipe, text=True)  # noqa: S603

    def ask(self, question: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return the answer to a question."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the server has no pipes")
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the server ended at the question {question}")
        return json.loads(answer)

    def close(self) -> None:
        """End the server."""
        self.process.communicate()


class Task(GEPAAdapter[int, dict[str, Any], float]):
    """One task as gepa sees it: rows are numbers, a trajectory is a row with its score."""

    def __init__(self, server: Answers, task: Mapping[str, Any]) -> None:
        self.server = server
        self.task = task
        self.rollouts = 0
        self.seconds = 0.0
        self.reflecting = False
        self.evaluations = itertools.count()
        self.turns = itertools.count()

    def ask(self, ask: str, **question: object) -> Any:  # noqa: ANN401
        """Return the answer to a question about this task."""
        return self.server.ask({**self.task, "ask": ask, **question})

    def evaluate(
        self,
        batch: list[int],
        candidate: dict[str, str],
        capture_traces: bool = False,  # noqa: ARG002
    ) -> EvaluationBatch[dict[str, Any], float]:
        """Score a candidate on rows, with noise of its own."""
        return self.batch_evaluate([(candidate, batch)])[0]

    def batch_evaluate(
        self, items: list[tuple[dict[str, str], list[int]]]
    ) -> list[EvaluationBatch[dict[str, Any], float]]:
        """Score several candidates at once."""
        count = sum(len(batch) for _, batch in items)
        self.rollouts += count
        self.seconds += math.ceil(count / WORKERS) * ROLLOUT_SECONDS
        self.reflecting = False
        return [self.scored(candidate[FIELD], batch) for candidate, batch in items]

    def scored(self, text: str, rows: list[int]) -> EvaluationBatch[dict[str, Any], float]:
        """Return the scores of a text."""
        scores = self.ask("score", text=text, of=rows, repeat=next(self.evaluations))
        seen = [{"row": row, "score": score} for row, score in zip(rows, scores, strict=True)]
        return EvaluationBatch(outputs=scores, scores=scores, trajectories=seen)

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],  # noqa: ARG002
        eval_batch: EvaluationBatch[dict[str, Any], float],
        components_to_update: list[str],
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return what the proposer sees: the rows of the minibatch with the parent's scores."""
        return {name: eval_batch.trajectories or [] for name in components_to_update}

    def propose_new_texts(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],  # noqa: ARG002
    ) -> dict[str, str]:
        """Return the proposal of the scripted proposer."""
        if not self.reflecting:
            self.seconds += PROPOSER_SECONDS
            self.reflecting = True
        evidence = [[seen["row"], seen["score"]] for seen in reflective_dataset[FIELD]]
        return {FIELD: self.ask("propose", text=candidate[FIELD], evidence=evidence, turn=next(self.turns))}


class Timeline:
    """Records the true quality of gepa's best candidate whenever gepa declares another one."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.best: list[tuple[int, float, float]] = []

    def on_valset_evaluated(self, event: Mapping[str, Any]) -> None:
        """Record a candidate that gepa declares the best."""
        if event["is_best_program"]:
            quality = self.task.ask("quality", text=event["candidate"][FIELD])
            self.best.append((self.task.rollouts, quality, round(self.task.seconds, 1)))


class Silent:
    """A logger that writes nothing."""

    def log(self, message: str) -> None:
        """Drop a message."""


def run(server: Answers, task: Mapping[str, Any], search: str, budget: int) -> dict[str, Any]:
    """Run gepa once and return its line."""
    started = time.monotonic()
    adapter = Task(server, task)
    timeline = Timeline(adapter)
    rows = list(range(task["rows"]))
    parents, _, width = search.partition(" x")
    sampling = None
    if width:
        sampling = (SameParentSampling if parents == "current_best" else IndependentSampling)(int(width))
    result = gepa.optimize(
        seed_candidate={FIELD: task.get("initial", INITIAL)},
        trainset=rows,
        valset=rows,
        adapter=adapter,
        candidate_selection_strategy=parents,
        sampling_strategy=sampling,
        reflection_minibatch_size=MINIBATCH,
        max_metric_calls=budget,
        seed=task["seed"],
        logger=Silent(),
        callbacks=[timeline],
    )
    reported = result.val_aggregate_scores[result.best_idx]
    quality = adapter.ask("quality", text=result.best_candidate[FIELD])
    if quality != timeline.best[-1][1]:
        raise RuntimeError(f"the timeline ends with {timeline.best[-1]}, gepa's best has the quality {quality}")
    return {
        **task,
        "search": f"gepa {search}",
        "version": version("gepa"),
        "window": 1,
        "budget": budget,
        "best": timeline.best,
        "rollouts": adapter.rollouts,
        "turns": next(adapter.turns),
        "seconds": round(adapter.seconds, 1),
        "own_seconds": round(time.monotonic() - started, 3),
        "end": {"reported": reported, "quality": quality},
    }


def tasks(plan: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Return every combination of the lists in a plan."""

    def values(name: str, usual: object) -> list[Any]:
        found = plan.get(name, usual)
        return found if isinstance(found, list) else [found]

    names = ("worlds", "rule"), ("rows", 50), ("noise", 0.0), ("learns", 0.5), ("search", ["pareto", "current_best"])
    first = plan.get("first_seed", 0)
    for world, rows, noise, learns, search in itertools.product(*(values(*name) for name in names)):
        for seed in range(first, first + plan.get("seeds", 1)):
            yield {"world": world, "rows": rows, "noise": noise, "learns": learns, "seed": seed}, search


def main() -> None:
    """Run the plans of the command line."""
    program, plans = sys.argv[1], json.loads(sys.argv[2])
    server = Server(program)
    for plan in plans if isinstance(plans, list) else [plans]:
        for task, search in tasks(plan):
            sys.stdout.write(json.dumps(run(server, task, search, plan.get("budget", 3000))) + "\n")
            sys.stdout.flush()
    server.close()


if __name__ == "__main__":
    main()
