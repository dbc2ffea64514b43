"""The one count of what a run has used, for the views and for the trackers."""

from typing import Any

import pytest

from synth_optimizers.cli.progress import Progress
from synth_optimizers.events import RunEvent
from synth_optimizers.spending import Spending
from synth_optimizers.tracking.metrics import Metrics

KNOWN = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": None, "cost_usd": 0.1}
HALF = {"prompt_tokens": 5, "completion_tokens": None, "total_tokens": None, "cost_usd": 0.2}
STATED = {"prompt_tokens": None, "completion_tokens": None, "total_tokens": 40, "cost_usd": 0.0}
UNPRICED = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "cost_usd": None}


def rollout(
    usage: dict[str, Any], failure: str = "", *, cached: bool = False, stage: str = "candidate_minibatch"
) -> Any:  # noqa: ANN401
    fields = {"request": 0, "stage": stage, "usage": usage, "cached": cached, "message": "it broke"}
    return ("rollout.failed", {**fields, "class": failure}) if failure else ("rollout.finished", fields)


def turn(usage: dict[str, Any], failure: str = "", *, cached: bool = False) -> Any:  # noqa: ANN401
    kind, fields = rollout(usage, failure, cached=cached)
    return kind.replace("rollout.finished", "proposer.completed").replace("rollout", "proposer"), fields


def spent(feed: list[tuple[str, dict[str, Any]]]) -> Spending:
    """Fold a feed as a view and as a tracker does; both must agree."""
    moment = "2026-01-01T00:00:00.000Z"
    events = [RunEvent(place, "run", moment, kind, fields, "") for place, (kind, fields) in enumerate(feed)]
    run, metrics = Progress(), Metrics(events[0])
    for event in events:
        run.apply(event)
        metrics.fold(event)
    assert metrics._spending == run.spending
    return run.spending


@pytest.mark.parametrize(
    ("feed", "expected"),
    [
        ([rollout(KNOWN), turn(KNOWN)], Spending(1, 0, 0, 2, 0, 0, 20, 4, 24, 0, 200_000_000)),
        # The total is not known where a part of it is not.
        ([rollout(HALF), rollout(STATED, stage="heldout")], Spending(1, 1, 0, 2, 0, 0, 5, 0, 40, 0, 200_000_000)),
        ([rollout(UNPRICED), rollout(KNOWN)], Spending(2, 0, 0, 2, 0, 0, 11, 3, 14, 1, 100_000_000)),
        ([rollout(KNOWN, cached=True), turn(KNOWN, "failed", cached=True)], Spending(1, 0, 0, 0, 2)),
        ([rollout(KNOWN, "timeout"), turn(KNOWN, "contract")], Spending(1, 0, 1, 2, 0, 0, 20, 4, 24, 0, 200_000_000)),
        ([rollout(KNOWN, "not_sent"), turn(KNOWN, "withdrawn"), rollout(KNOWN, "withdrawn")], Spending()),
        ([rollout(KNOWN, "unknown_outcome"), turn(KNOWN, "abandoned")], Spending(1, 0, 1, 2, 0, 2, 20, 4, 24, 2)),
        ([rollout(KNOWN, "unknown_outcome", cached=True)], Spending(1, 0, 1, 1, 0, 1, 10, 2, 12, 1)),
    ],
    ids=["paid", "unknown-tokens", "unpriced", "cached", "failed", "never-sent", "unknown", "unknown-and-cached"],
)
def test_calls_are_counted_as_the_run_counts_them(feed: list[tuple[str, dict[str, Any]]], expected: Spending) -> None:
    assert spent(feed) == expected


def test_an_unknown_cost_makes_the_sum_unknown() -> None:
    assert spent([rollout(KNOWN), rollout(HALF)]).cost_usd == 0.3
    assert spent([rollout(KNOWN), rollout(UNPRICED)]).cost_usd is None
