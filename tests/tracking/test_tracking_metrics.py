"""Metrics folded from recorded feeds."""

import math
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from synth_optimizers._synth_optimizers import RunFold
from synth_optimizers.events import RunEvent
from synth_optimizers.tracking.metrics import SEQUENCE_NUMBER, Metrics, Update

Series = dict[str, list[tuple[int, float]]]


def folded(events: list[RunEvent]) -> tuple[Metrics, list[Update]]:
    metrics = Metrics(events[0])
    return metrics, [update for event in events if (update := metrics.fold(event)) is not None]


def series(updates: list[Update]) -> Series:
    found: Series = defaultdict(list)
    for update in updates:
        for name, value in update.metrics.items():
            found[name].append((update.step, value))
    return found


def test_the_step_of_a_score_is_the_number_of_rollouts(finished: list[RunEvent]) -> None:
    found = series(folded(finished)[1])
    sixth = 1 / 6
    assert found["val_program_average"] == [
        (6, sixth),
        (15, 2 * sixth),
        (19, 2 * sixth),
        (25, 3 * sixth),
        (37, pytest.approx(4 * sixth)),
        (38, pytest.approx(4 * sixth)),
    ]
    best = [(6, sixth), (15, 2 * sixth), (25, 3 * sixth), (37, pytest.approx(4 * sixth))]
    assert found["best_score_on_valset"] == best
    assert found["valset_pareto_front_agg"][-1] == pytest.approx((38, 5 * sixth))
    assert found["frontier_size"] == [(6, 1), (15, 2), (19, 3), (25, 4), (37, 5), (38, 6)]
    assert found["total_candidates"] == found["frontier_size"]
    assert found["iteration"] == [(6, 1), (19, 2), (25, 3)]
    assert {value for _, value in found["val_evaluated_count_new_program"] + found["val_total_count"]} == {6}


def test_a_minibatch_reports_parent_and_candidate_as_sums_and_means(finished: list[RunEvent]) -> None:
    found = series(folded(finished)[1])
    assert found["subsample/before"] == [(9, 0), (12, 0), (22, 2), (28, 1), (31, 1)]
    assert found["subsample/after"] == [(9, 1), (12, 1), (22, 3), (28, 2), (31, 2)]
    assert found["minibatch/after"][2] == (22, 1.0)
    assert found["minibatch/before"][2] == pytest.approx((22, 2 / 3))


def test_decisions_are_counted_without_the_initial_candidate(finished: list[RunEvent], failed: list[RunEvent]) -> None:
    found = series(folded(finished)[1])
    assert found["candidates/accepted"] == [(15, 1), (25, 2), (37, 3)]
    assert found["candidates/rejected"] == [(19, 1), (38, 2)]
    assert found["proposals/refused"] == [(6, 1), (25, 2)]
    assert found["proposer/turns"][-1] == (25, 5)
    assert "proposer/failed_turns" not in found
    assert series(folded(failed)[1])["proposer/failed_turns"][-1] == (6, 6)


@pytest.mark.parametrize("feed", ["finished", "failed", "resumed"])
def test_the_counts_equal_the_totals_of_the_run(feed: str, request: pytest.FixtureRequest) -> None:
    events: list[RunEvent] = request.getfixturevalue(feed)
    end = events[-1].fields
    fold, metrics = RunFold(), Metrics(events[0])
    counted: dict[str, float] = {}
    for event in events:
        fold.apply(event.sequence_number, event.ts, event.type, event.fields, event.message)
        update = metrics.fold(event)
        counted |= update.metrics if update is not None else {}
    assert counted["total_metric_calls"] == end["rollouts"]["train"]
    assert counted["rollouts/heldout"] == end["rollouts"]["heldout"]
    names = ["prompt", "completion", "total"]
    assert [counted[f"tokens/{name}"] for name in names] == [end["bill"][f"{name}_tokens"] for name in names]
    assert counted["calls/sent"] == end["bill"]["sent_calls"]
    assert counted["calls/cached"] == end["bill"]["cached_calls"]
    cost = counted.get("cost_usd", math.nan)
    assert (None if math.isnan(cost) else cost) == end["bill"]["cost_usd"]
    totals = fold.totals()
    assert totals["usage"]["rollouts"]["unknown_outcomes"] == end["rollouts"]["unknown_outcomes"]
    assert counted["rollouts/failed"] == totals["rollouts_failed"]


def test_the_final_event_reports_heldout_scores_and_gain(finished: list[RunEvent]) -> None:
    metrics, updates = folded(finished)
    end = updates[-1]
    assert end.step == 44
    assert end.metrics["heldout/seed"] == pytest.approx(1 / 3)
    assert end.metrics["heldout/best"] == pytest.approx(2 / 3)
    assert end.metrics["heldout/gain"] == pytest.approx(1 / 3)
    assert end.metrics["heldout/gain_low"] < 0 < end.metrics["heldout/gain_high"]
    assert end.metrics["train/gain"] == pytest.approx(0.5)
    assert end.metrics["best_valset_score"] == end.metrics["train/best"] == pytest.approx(2 / 3)
    assert (end.metrics["total_iterations"], end.metrics["candidates/registered"]) == (3, 6)
    assert end.metrics["rollouts/heldout"] == 6
    assert series(updates)["total_metric_calls"][-1] == (38, 38)
    assert metrics.outcome == "completed"
    assert metrics.texts["stopped_by"] == "max_generations"
    assert metrics.texts["seed/instructions"] == "Answer by the house rules: r0"


def test_a_cost_that_becomes_unknown_is_nan_once_and_never_zero(finished: list[RunEvent]) -> None:
    costs = series(folded(finished)[1])["cost_usd"]
    assert [step for step, _ in costs] == [6, 6, 6, 9, 12, 15, 19]
    assert costs[0] == (6, 3.96e-05)
    assert costs[5] == (15, 0.0020995)
    assert math.isnan(costs[6][1])


def test_a_cost_that_was_never_known_is_absent(finished: list[RunEvent]) -> None:
    def unpriced(event: RunEvent) -> RunEvent:
        usage: dict[str, Any] = {**event.fields.get("usage", {}), "cost_usd": None}
        return replace(event, fields={**event.fields, "usage": usage})

    assert "cost_usd" not in series(folded([unpriced(event) for event in finished])[1])


def test_a_cached_answer_counts_as_a_rollout_but_not_as_a_sent_call(resumed: list[RunEvent]) -> None:
    cached = [replace(event, fields={**event.fields, "cached": True}) for event in resumed[:-1]]
    found = series(folded(cached)[1])
    assert found["total_metric_calls"][-1] == (36, 36)
    assert found["calls/cached"][-1] == (36, 39)
    assert found["calls/sent"] == found["cost_usd"] == [(6, 0)]


def test_parameters_are_reported_once_under_the_names_of_gepa(resumed: list[RunEvent]) -> None:
    updates = folded(resumed)[1]
    params = {name: value for update in updates for name, value in update.params.items()}
    assert sum(len(update.params) for update in updates) == len(params)
    assert params["run_id"] == "resumed-run"
    assert (params["seed"], params["trainset_size"], params["valset_size"], params["heldout_size"]) == (7, 6, 6, 3)
    assert params["seed_candidate_components"] == "instructions"
    assert params["frontier_type"] == "per_example"


def test_repeated_events_change_nothing(resumed: list[RunEvent]) -> None:
    straight = folded(resumed)[1]
    metrics = Metrics(resumed[0])
    again = [metrics.fold(event) for event in [*resumed[:45], *resumed, *resumed[100:]]]
    assert [update for update in again if update is not None] == straight
    sequence_numbers = [update.metrics[SEQUENCE_NUMBER] for update in straight]
    assert sequence_numbers == sorted(set(sequence_numbers))


def test_a_feed_joined_in_the_middle_has_no_counts_before_the_end(resumed: list[RunEvent]) -> None:
    metrics, updates = folded(resumed[45:])
    found = series(updates[:-1])
    assert not metrics.feed.is_whole
    assert {"val_program_average", "best_score_on_valset", "frontier_size", "iteration"} <= set(found)
    assert not {"candidates/accepted", "tokens/total", "cost_usd", "total_metric_calls"} & set(found)
    steps = [update.step for update in updates]
    assert steps == sorted(steps)
    end = updates[-1].metrics
    assert (end["total_metric_calls"], end["cost_usd"]) == (36, 0.0032841)
    assert end["train/gain"] == pytest.approx(0.5)
    assert "rollouts/failed" not in end


def test_the_list_of_metrics_is_complete(
    finished: list[RunEvent], failed: list[RunEvent], resumed: list[RunEvent]
) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
    known = re.findall(r"^\| `([^`]+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(known) == len(set(known))
    given = {name for events in (finished, failed, resumed) for name in series(folded(events)[1])}
    # These runs have no deferred candidate and no duplicate proposal.
    assert given == set(known) - {"candidates/deferred", "proposals/duplicate"}


def test_deferred_candidates_and_duplicate_proposals_are_counted(failed: list[RunEvent]) -> None:
    fields = {"candidate_id": "gepa_1", "stage": "candidate_minibatch", "reason": "too_many_failures"}
    deferred = replace(failed[0], sequence_number=1, type="candidate.deferred", fields=fields)
    repeated = {"candidate_id": "gepa_1", "generation": 0, "index": 0}
    duplicate = replace(failed[0], sequence_number=2, type="candidate.duplicate_skipped", fields=repeated)
    found = series(folded([failed[0], deferred, duplicate])[1])
    assert found["candidates/deferred"] == found["proposals/duplicate"] == [(0, 1)]


def test_a_cancelled_run_keeps_its_totals(failed: list[RunEvent]) -> None:
    last = failed[-1]
    fields = {name: last.fields[name] for name in ("best_candidate_id", "rollouts", "bill")}
    cancelled = replace(last, type="gepa.run.cancelled", fields={**fields, "reason": "no time"})
    metrics, updates = folded([*failed[:-1], cancelled])
    assert metrics.outcome == "cancelled"
    assert series(updates)["tokens/total"][-1][1] == last.fields["bill"]["total_tokens"] == 1722
