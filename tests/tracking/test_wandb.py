"""Runs that W&B writes offline, parsed from its files."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
import wandb
from wandb.proto import wandb_internal_pb2

from synth_optimizers.errors import CancelledError, ConfigError, ProposerError
from synth_optimizers.events import RunEvent
from synth_optimizers.result import GepaRunResult
from synth_optimizers.tracking import WandbSubscriber

BLOCK = 32768
CHUNK_HEADER = 7
FULL, FIRST, LAST = 1, 2, 4

Record: Any = wandb_internal_pb2.__dict__["Record"]
"""A record of W&B's log; its type is created at run time."""


@pytest.fixture(autouse=True)
def _service_ends() -> Iterator[None]:
    """End the process that W&B starts for its runs."""
    yield
    wandb.teardown()


def end(subscriber: WandbSubscriber, result: GepaRunResult | None = None, error: Exception | None = None) -> None:
    """Close the subscriber and let W&B flush, as it does when a program ends."""
    subscriber.close(result, error)
    wandb.teardown()


def records(directory: Path) -> Iterator[Any]:
    """Parse the log of an offline run: chunks in blocks, as in LevelDB, behind a header."""
    [path] = directory.glob("wandb/offline-run-*/run-*.wandb")
    data = path.read_bytes()
    position, held = CHUNK_HEADER, b""
    while position + CHUNK_HEADER <= len(data):
        if BLOCK - position % BLOCK < CHUNK_HEADER:
            position += BLOCK - position % BLOCK
            continue
        size, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        start = position + CHUNK_HEADER
        position = start + size
        held = data[start:position] if kind in (FULL, FIRST) else held + data[start:position]
        if kind in (FULL, LAST):
            yield Record.FromString(held)


def rows(directory: Path) -> list[dict[str, Any]]:
    """Return the history: one row per step."""
    logged = [record.history for record in records(directory) if record.HasField("history")]
    return [{"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row.item} for row in logged]


def reported(directory: Path, kind: str) -> dict[str, Any]:
    """Return the last values of the summary or the config."""
    found: dict[str, Any] = {}
    for record in records(directory):
        parts = [getattr(record, kind)] if record.HasField(kind) else []
        parts += [getattr(record.run, kind)] if record.HasField("run") else []
        for part in parts:
            found.update({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in part.update})
    return found


def exit_code(directory: Path) -> int:
    [code] = [record.exit.exit_code for record in records(directory) if record.HasField("exit")]
    return int(code)


def feed(subscriber: WandbSubscriber, events: list[RunEvent]) -> None:
    for event in events:
        subscriber.on_event(event)


def test_a_finished_run_has_its_name_scores_config_and_files(
    tmp_path: Path, finished: list[RunEvent], result: GepaRunResult
) -> None:
    subscriber = WandbSubscriber(
        project="tests", mode="offline", directory=tmp_path, config={"gepa": {"minibatch_size": 3}}
    )
    feed(subscriber, finished)
    end(subscriber, result)

    [run] = [record.run for record in records(tmp_path) if record.HasField("run")]
    assert (run.display_name, run.project) == ("finished-run", "tests")
    assert exit_code(tmp_path) == 0

    history = {row["_step"]: row for row in rows(tmp_path)}
    best = {step: row["best_score_on_valset"] for step, row in history.items() if "best_score_on_valset" in row}
    assert best == pytest.approx({6: 1 / 6, 15: 2 / 6, 25: 3 / 6, 37: 4 / 6})
    assert [row["total_metric_calls"] for step, row in history.items() if 0 < step < 44] == [
        step for step in history if 0 < step < 44
    ]
    assert history[44]["heldout/gain"] == pytest.approx(1 / 3)
    assert history[22]["subsample/after"] == 3

    config = reported(tmp_path, "config")
    assert (config["gepa.minibatch_size"], config["seed"], config["run_id"]) == (3, 7, "finished-run")
    summary = reported(tmp_path, "summary")
    assert summary["outcome"] == "completed"
    assert summary["best/instructions"] == result.best_candidate["payload"]["instructions"]

    [kept] = tmp_path.glob("wandb/offline-run-*/files")
    for name in ("best_candidate.json", "score_chart.svg", "result_manifest.json"):
        assert (kept / name).read_bytes() == Path(result.run_dir, name).read_bytes()
        assert not (kept / name).is_symlink()
    sent = {item.path for record in records(tmp_path) if record.HasField("files") for item in record.files.files}
    assert {"best_candidate.json", "score_chart.svg", "result_manifest.json"} <= sent


def test_no_data_about_the_machine_is_written(tmp_path: Path, failed: list[RunEvent]) -> None:
    subscriber = WandbSubscriber(mode="offline", directory=tmp_path)
    feed(subscriber, failed[:20])
    end(subscriber)
    kinds = {record.WhichOneof("record_type") for record in records(tmp_path)}
    assert not kinds & {"output", "output_raw", "stats"}
    assert not [path for path in tmp_path.glob("wandb/offline-run-*/files/**/*") if path.is_file()]
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"


def test_a_failed_run_ends_with_an_error(tmp_path: Path, failed: list[RunEvent]) -> None:
    subscriber = WandbSubscriber(mode="offline", directory=tmp_path)
    # A handle calls the subscriber from its own thread and closes it from the waiting one.
    served = Thread(target=feed, args=(subscriber, failed))
    served.start()
    served.join()
    problem = "synth_optimizer_proposer_error: 3 turns in a row returned no valid proposal"
    end(subscriber, error=ProposerError(problem))
    assert exit_code(tmp_path) == 1
    summary = reported(tmp_path, "summary")
    assert summary["outcome"] == "failed"
    assert "3 turns in a row" in summary["error"]
    assert rows(tmp_path)[-1]["cost_usd"] == 0.0060396


def test_repeated_events_are_not_logged_again(tmp_path: Path, resumed: list[RunEvent]) -> None:
    written = []
    for name, events in [("straight", resumed), ("again", [*resumed[:60], *resumed])]:
        subscriber = WandbSubscriber(mode="offline", directory=tmp_path / name)
        feed(subscriber, events)
        end(subscriber)
        clock = ("_timestamp", "_runtime")
        history = rows(tmp_path / name)
        written.append([{key: value for key, value in row.items() if key not in clock} for row in history])
    assert written[0] == written[1]
    assert written[0][-1]["_step"] == 42


def test_a_closed_subscriber_can_continue(tmp_path: Path, resumed: list[RunEvent]) -> None:
    subscriber = WandbSubscriber(mode="offline", directory=tmp_path)
    feed(subscriber, resumed[:60])
    end(subscriber, error=CancelledError("synth_optimizer_cancelled: interrupted"))
    first = rows(tmp_path)
    [part] = (tmp_path / "wandb").glob("offline-run-*")
    part.rename(tmp_path / "first")
    (tmp_path / "wandb").rename(tmp_path / "of-the-first")
    feed(subscriber, resumed)
    end(subscriber)
    second = rows(tmp_path)
    assert max(row["sequence_number"] for row in first) == 59
    assert min(row["sequence_number"] for row in second) > 59
    assert second[-1]["heldout/gain"] == pytest.approx(1 / 3)


def test_an_existing_run_of_the_user_is_unaffected(tmp_path: Path, failed: list[RunEvent]) -> None:
    settings = wandb.Settings(silent=True, console="off", disable_git=True)
    own = wandb.init(mode="offline", dir=tmp_path / "own", settings=settings)
    subscriber = WandbSubscriber(mode="offline", directory=tmp_path / "ours")
    feed(subscriber, failed)
    subscriber.close(None, CancelledError("synth_optimizer_cancelled: interrupted"))
    assert wandb.run is own
    own.finish()
    wandb.teardown()
    assert rows(tmp_path / "own") == []


def test_an_online_run_is_continued_after_its_last_step(
    resumed: list[RunEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Continued:
        """A W&B run as it is resumed after event 59, at step 19."""

        summary: ClassVar = {"sequence_number": 59}
        config: ClassVar[dict[str, Any]] = {}
        step = 20
        logged: ClassVar[list[tuple[int, dict[str, float]]]] = []

        def log(self, metrics: dict[str, float], step: int) -> None:
            self.logged.append((step, metrics))

    asked: dict[str, Any] = {}
    monkeypatch.setattr(wandb, "login", lambda **_: True)
    monkeypatch.setattr(wandb, "init", lambda **options: asked.update(options) or Continued())
    feed(WandbSubscriber(mode="online"), resumed)
    assert (asked["resume"], asked["name"], asked["project"]) == ("allow", "resumed-run", "synth-optimizers")
    sequence_numbers = [metrics["sequence_number"] for _, metrics in Continued.logged]
    assert sequence_numbers == sorted(set(sequence_numbers))
    assert (sequence_numbers[0], sequence_numbers[-1]) == (60, 142)
    assert Continued.logged[0][0] == 20
    assert Continued.logged[-1][0] == 42


def test_a_missing_api_key_is_reported_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb, "login", lambda **options: bool(options.get("prompt")))
    with pytest.raises(ConfigError, match="no API key") as refusal:
        WandbSubscriber(mode="online")
    assert "WANDB_MODE=offline" in refusal.value.hint
