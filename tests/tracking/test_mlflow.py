"""Runs in a real MLflow store."""

import math
import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from mlflow import MlflowClient

from synth_optimizers.errors import CancelledError, ProposerError
from synth_optimizers.events import RunEvent
from synth_optimizers.result import GepaRunResult
from synth_optimizers.tracking import MlflowSubscriber
from synth_optimizers.tracking.metrics import Metrics

# MLflow's models use a loader that is deprecated in SQLAlchemy 2.1.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")

History = dict[str, list[tuple[int, float, int]]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return one store for all tests, because creating its tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def options(store: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return options with a separate experiment for each test."""
    return {"tracking_uri": store, "experiment": request.node.name}


def runs(options: dict[str, Any]) -> list[Any]:
    client = MlflowClient(tracking_uri=options["tracking_uri"])
    experiment = client.get_experiment_by_name(options["experiment"])
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def history(options: dict[str, Any]) -> History:
    client = MlflowClient(tracking_uri=options["tracking_uri"])
    [run] = runs(options)
    return {
        name: [(point.step, point.value, point.timestamp) for point in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }


def expected(events: list[RunEvent]) -> History:
    """Return the metrics of a feed that is read once and completely."""
    metrics = Metrics(events[0])
    found: History = defaultdict(list)
    for update in filter(None, map(metrics.fold, events)):
        for name, value in update.metrics.items():
            found[name].append((update.step, value, update.time_ms))
    return found


def feed(subscriber: MlflowSubscriber, events: list[RunEvent]) -> None:
    for event in events:
        subscriber.on_event(event)


def test_a_finished_run_has_its_name_scores_parameters_and_files(
    options: dict[str, Any], finished: list[RunEvent], result: GepaRunResult, tmp_path: Path
) -> None:
    config = {"gepa": {"minibatch_size": 3, "stop": None}, "ids": ["a", "b"]}
    subscriber = MlflowSubscriber(**options, config=config)
    feed(subscriber, finished)
    subscriber.close(result, None)
    [run] = runs(options)
    assert run.info.run_name == run.data.tags["synth_optimizers.run_id"] == "finished-run"
    assert run.info.status == "FINISHED"

    best = history(options)["best_score_on_valset"]
    assert [step for step, _, _ in best] == [6, 15, 25, 37]
    assert [value for _, value, _ in best] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6])
    [(step, gain, time)] = history(options)["heldout/gain"]
    assert (step, gain) == pytest.approx((44, 1 / 3))
    assert finished[-1].ts.endswith(f".{time % 1000:03}Z")
    assert math.isnan(run.data.metrics["cost_usd"])

    assert run.data.params["gepa.minibatch_size"] == "3"
    assert run.data.params["ids"] == '["a", "b"]'
    assert "gepa.stop" not in run.data.params
    assert (run.data.params["seed"], run.data.params["valset_size"]) == ("7", "6")
    assert run.data.tags["summary/outcome"] == "completed"
    assert run.data.tags["summary/best/instructions"] == result.best_candidate["payload"]["instructions"]

    client = MlflowClient(tracking_uri=options["tracking_uri"])
    kept = {found.path for found in client.list_artifacts(run.info.run_id)}
    assert kept == {"best_candidate.json", "score_chart.svg", "result_manifest.json"}
    fetched = client.download_artifacts(run.info.run_id, "best_candidate.json", str(tmp_path))
    assert Path(fetched).read_bytes() == Path(result.run_dir, "best_candidate.json").read_bytes()


def test_a_failed_run_fails_in_mlflow(options: dict[str, Any], failed: list[RunEvent]) -> None:
    subscriber = MlflowSubscriber(**options)
    feed(subscriber, failed)
    subscriber.close(None, ProposerError("synth_optimizer_proposer_error: 3 turns in a row returned no valid proposal"))
    [run] = runs(options)
    assert run.info.status == "FAILED"
    assert run.data.tags["summary/outcome"] == "failed"
    assert "3 turns in a row" in run.data.tags["summary/error"]
    assert run.data.metrics["cost_usd"] == 0.0060396
    assert not MlflowClient(tracking_uri=options["tracking_uri"]).list_artifacts(run.info.run_id)


def test_an_error_without_an_event_fails_the_run_until_it_is_resumed(
    options: dict[str, Any], failed: list[RunEvent]
) -> None:
    subscriber = MlflowSubscriber(**options)
    feed(subscriber, failed[:10])
    subscriber.close(None, RuntimeError("the disk is gone"))
    [run] = runs(options)
    assert (run.info.status, run.data.tags["summary/error"]) == ("FAILED", "the disk is gone")
    feed(subscriber, failed[:21])
    subscriber.close(None, CancelledError("synth_optimizer_cancelled: interrupted"))
    [run] = runs(options)
    assert (run.info.status, run.data.tags["summary/error"]) == ("KILLED", "none")


def test_events_may_come_from_another_thread(options: dict[str, Any], failed: list[RunEvent]) -> None:
    subscriber = MlflowSubscriber(**options)
    served = Thread(target=feed, args=(subscriber, failed))
    served.start()
    served.join()
    subscriber.close(None, None)
    assert history(options) == expected(failed)


@pytest.mark.parametrize("again_from", [0, 20])
def test_the_same_subscriber_continues_a_resumed_run(
    again_from: int, options: dict[str, Any], failed: list[RunEvent]
) -> None:
    subscriber = MlflowSubscriber(**options)
    feed(subscriber, failed[:30])
    subscriber.close(None, CancelledError("synth_optimizer_cancelled: interrupted"))
    assert [run.info.status for run in runs(options)] == ["KILLED"]
    feed(subscriber, failed[again_from:])
    subscriber.close(None, None)
    assert [run.info.status for run in runs(options)] == ["FAILED"]
    assert history(options) == expected(failed)


def test_another_process_continues_the_run(
    options: dict[str, Any], resumed: list[RunEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[float] = []
    log_batch = MlflowClient.log_batch

    def noted(client: MlflowClient, run_id: str, metrics: Any = (), params: Any = ()) -> None:  # noqa: ANN401
        sent.extend(metric.value for metric in metrics if metric.key == "sequence_number")
        log_batch(client, run_id, metrics, params)

    monkeypatch.setattr(MlflowClient, "log_batch", noted)
    feed(MlflowSubscriber(**options, config={"a": 1}), resumed[:60])
    second = MlflowSubscriber(**options, config={"a": 1})
    feed(second, resumed)
    second.close(None, None)
    assert history(options) == expected(resumed)
    assert sent == [number for _, number, _ in expected(resumed)["sequence_number"]]
    assert [run.info.status for run in runs(options)] == ["FINISHED"]


def test_a_restarted_run_with_the_same_id_is_a_new_tracker_run(options: dict[str, Any], failed: list[RunEvent]) -> None:
    subscriber = MlflowSubscriber(**options)
    feed(subscriber, failed[:20])
    feed(subscriber, [replace(event, ts=event.ts.replace("2026-", "2027-")) for event in failed[:20]])
    subscriber.close(None, None)
    assert [(run.info.run_name, run.info.status) for run in runs(options)] == [("failed-run", "KILLED")] * 2


def test_long_texts_do_not_stop_the_tracking(options: dict[str, Any], failed: list[RunEvent]) -> None:
    texts = {"instructions": "word " * 4000}
    seed = next(event for event in failed if event.type == "candidate.registered")
    subscriber = MlflowSubscriber(**options, config={"seed_candidate": texts})
    feed(subscriber, [*failed[:8], replace(seed, fields={**seed.fields, "payload": texts})])
    subscriber.close(None, None)
    [run] = runs(options)
    assert run.data.tags["summary/seed/instructions"].startswith("word word")
    assert run.data.params["seed_candidate.instructions"].startswith("word word")


def test_names_that_mlflow_refuses_do_not_stop_the_tracking(options: dict[str, Any], failed: list[RunEvent]) -> None:
    subscriber = MlflowSubscriber(**options, config={"proposer": {"prices": {"words:8b@x": {"prompt_usd": 0.5}}}})
    feed(subscriber, failed[:8])
    subscriber.close(None, None)
    [run] = runs(options)
    assert run.data.params["proposer.prices.words:8b_x.prompt_usd"] == "0.5"


def test_mlflow_usage_reports_are_disabled(options: dict[str, Any]) -> None:
    MlflowSubscriber(**options)
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
