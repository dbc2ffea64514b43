"""Runs gepa once and writes what it has used.

Usage: python peer_gepa.py '{"rows": 100, "needs": 5, "rollouts": 1000, "reply_bytes": 1000, "seconds": 60}'

`seconds` is the time cap. More options: `directory` (the state is kept there), `container` (rollouts over HTTP),
`threads`, `width` (proposals in an iteration), `turn_seconds`.
"""

from __future__ import annotations

import http.client
import itertools
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gepa
from gepa.core.adapter import EvaluationBatch, GEPAAdapter
from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal
from gepa.strategies.proposal_sampling import IndependentSampling
from gepa.utils import TimeoutStopCondition
from marks import Marks
from task import FIELD, INITIAL, judge, next_line, reply, rules_of

Candidate = dict[str, str]
Record = dict[str, Any]


class Rollouts:
    """Runs rollouts in this process, or over HTTP with a connection for each thread."""

    def __init__(self, options: Mapping[str, Any], marks: Marks) -> None:
        self.options = options
        self.marks = marks
        self.count = 0
        self.numbers = itertools.count()
        self.threads = ThreadPoolExecutor(options.get("threads", 8))
        self.local = threading.local()

    def run(self, items: list[tuple[Candidate, list[int]]]) -> list[list[Record]]:
        """Run the rows of several candidates side by side."""
        self.marks.rollout()
        self.count += sum(len(rows) for _, rows in items)
        if "container" not in self.options:
            return [self.judge(candidate, rows) for candidate, rows in items]
        jobs = [[self.threads.submit(self.send, candidate, row) for row in rows] for candidate, rows in items]
        return [[job.result() for job in found] for found in jobs]

    def judge(self, candidate: Candidate, rows: list[int]) -> list[Record]:
        """Run rows in this process."""
        rules, size = rules_of(candidate[FIELD]), self.options["reply_bytes"]
        return [reply(*judge(rules, row, self.options["rows"], self.options["needs"]), size) for row in rows]

    def send(self, candidate: Candidate, row: int) -> Record:
        """Send a rollout to the container."""
        body = {
            "rollout_id": f"gepa-{next(self.numbers)}",
            "submission_mode": "sync",
            "candidate": candidate,
            "task": {"task_id": f"train:{row}", "split": "train", "seed": row},
        }
        if not hasattr(self.local, "connection"):
            self.local.connection = http.client.HTTPConnection(self.options["container"].removeprefix("http://"))
        connection = self.local.connection
        connection.request("POST", "/rollouts", json.dumps(body), {"Content-Type": "application/json"})
        record: Record = json.loads(connection.getresponse().read())
        return record


class Adapter(GEPAAdapter[int, Record, Record]):
    """The task as gepa sees it: a row is a number, a trajectory the record of its rollout."""

    propose_new_texts = None

    def __init__(self, rollouts: Rollouts) -> None:
        self.rollouts = rollouts

    def evaluate(
        self,
        batch: list[int],
        candidate: Candidate,
        capture_traces: bool = False,
    ) -> EvaluationBatch[Record, Record]:
        """Evaluate a candidate on rows."""
        return self.batch_evaluate([(candidate, batch)])[0]

    def batch_evaluate(self, items: list[tuple[Candidate, list[int]]]) -> list[EvaluationBatch[Record, Record]]:
        """Evaluate several candidates at once."""
        return [
            EvaluationBatch(
                outputs=records,
                scores=[float(record["reward_info"]["outcome_reward"]) for record in records],
                trajectories=records,
            )
            for records in self.rollouts.run(items)
        ]

    def make_reflective_dataset(
        self,
        candidate: Candidate,
        eval_batch: EvaluationBatch[Record, Record],
        components_to_update: list[str],
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return the feedback of the minibatch."""
        feedback = [record["actionable_side_info"] for record in eval_batch.trajectories or []]
        return dict.fromkeys(components_to_update, feedback)


class Proposer:
    """The scripted proposer. The turns of an iteration run side by side."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def reflect(self, *job: Any) -> tuple[ReflectionProposal, Proposer]:
        """Propose one text."""
        return self.reflect_many([job])[0]

    def reflect_many(self, jobs: list[Any]) -> list[tuple[ReflectionProposal, Proposer]]:
        """Propose a text for each parent."""
        if self.seconds:
            time.sleep(self.seconds)
        return [(self.proposal(candidate, dataset), self) for candidate, dataset, _ in jobs]

    def proposal(self, candidate: Candidate, dataset: Mapping[str, Sequence[Mapping[str, Any]]]) -> ReflectionProposal:
        """Add a line to the parent."""
        line = next_line(str(seen["feedback"]) for seen in dataset[FIELD])
        return ReflectionProposal(new_texts={FIELD: f"{candidate[FIELD]}\n{line}"})


class Silent:
    """A logger that writes nothing."""

    def log(self, message: str) -> None:
        """Drop a message."""


def main() -> None:
    """Run gepa once."""
    options = json.loads(sys.argv[1])
    marks = Marks()
    rollouts = Rollouts(options, marks)
    rows = list(range(options["rows"]))
    width = options.get("width", 1)
    result = gepa.optimize(
        seed_candidate={FIELD: INITIAL},
        trainset=rows,
        valset=rows,
        adapter=Adapter(rollouts),
        reflection_strategy=Proposer(options.get("turn_seconds", 0.0)),
        sampling_strategy=IndependentSampling(width) if width > 1 else None,
        reflection_minibatch_size=3,
        max_metric_calls=options["rollouts"],
        stop_callbacks=TimeoutStopCondition(options["seconds"]),
        run_dir=options.get("directory"),
        logger=Silent(),
    )
    marks.write(rollouts=rollouts.count, candidates=len(result.candidates))


if __name__ == "__main__":
    main()
