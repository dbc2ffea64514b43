"""Whole runs through the Python API, against the example's real container and its offline reflector."""

import asyncio
import contextlib
import dataclasses
import gc
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.example import Example, example_config, serve_example
from support.polling import WAIT_TIMEOUT_SECONDS, wait_until

import synth_optimizers as so
import synth_optimizers.handle as handles
from synth_optimizers import GepaRun, GepaRunResult, RunEvent, RunHandle, RunStatus
from synth_optimizers._synth_optimizers import NativeRun, ask_run

SMALL: dict[str, object] = {"gepa__max_generations": 3, "gepa__max_total_rollouts": 260, "cache__mode": "off"}


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """Yield servers whose rollouts are slow enough to interrupt a run."""
    with serve_example(tmp_path_factory.mktemp("slow"), delay=0.05) as running:
        yield running


@pytest.fixture(scope="module")
def finished(example: Example, tmp_path_factory: pytest.TempPathFactory) -> GepaRunResult:
    """Return the result of a small run."""
    path = example_config(tmp_path_factory.mktemp("finished"), example, **SMALL)
    return GepaRun.from_toml(path).execute()


def test_a_result_has_scores_best_candidate_and_cost(finished: GepaRunResult) -> None:
    assert finished.status == "completed"
    scores = finished.scores
    assert scores.seed_heldout is not None
    assert scores.best_heldout is not None
    assert scores.heldout_gain is not None
    assert (scores.best_heldout.n, scores.heldout_gain.n) == (24, 24)
    assert scores.best_heldout.mean - scores.seed_heldout.mean == pytest.approx(scores.heldout_gain.difference)
    assert scores.heldout_gain.low is not None
    assert scores.heldout_gain.low > 0
    assert finished.cost_usd == 0.0
    assert finished.rollouts["train"] + finished.rollouts["heldout"] <= 260
    assert finished.best_candidate["payload"] == finished.best_prompt != finished.initial_prompt
    for name in [field.name for field in dataclasses.fields(finished) if field.name.endswith("_path")]:
        assert Path(getattr(finished, name)).is_file(), name
    assert {Path(known["path"]).name for known in finished.artifact_refs} >= {
        *("events.jsonl", "score_chart.svg", "lineage.svg"),
    }


def test_a_result_is_a_frozen_record(finished: GepaRunResult) -> None:
    again = GepaRunResult.from_run_dir(finished.run_dir)
    assert again == finished
    with pytest.raises(dataclasses.FrozenInstanceError):
        finished.run_id = "other"  # type: ignore[misc]
    plain = json.loads(json.dumps(finished.to_dict()))
    assert plain["scores"]["best_heldout"]["n"] == 24
    assert "ticket-router" in repr(finished)
    assert "payload" not in repr(finished)
    assert len(repr(finished)) < 2500


def test_a_result_says_what_the_held_out_rows_show(finished: GepaRunResult) -> None:
    claim = finished.claim
    assert claim is not None
    assert claim.gain is not None
    assert (claim.verdict, claim.candidate_id) == ("better", finished.best_candidate["candidate_id"])
    assert 0 < claim.gain.low < claim.gain.estimate < claim.gain.high
    assert claim.p_value is not None
    assert claim.p_value <= 0.05
    assert str(claim) == claim.sentence
    assert finished.to_dict()["claim"]["gain"]["rows"] == 24
    purposes = finished.rollouts_by_purpose
    assert purposes["heldout"] == finished.rollouts["heldout"]
    assert sum(purposes.values()) == finished.rollouts["train"] + finished.rollouts["heldout"]


def test_a_manifest_of_an_earlier_version_has_no_claim(finished: GepaRunResult) -> None:
    manifest = json.loads(Path(finished.manifest_path).read_text())
    later = ("claim", "rollouts_by_purpose", "lineage_path")
    earlier = {name: value for name, value in manifest.items() if name not in later}
    result = GepaRunResult.from_manifest(earlier)
    assert (result.claim, result.rollouts_by_purpose) == (None, {})
    assert result.lineage_path == finished.lineage_path
    assert result.scores == finished.scores


def test_a_notebook_shows_verdict_chart_changes_and_lineage(finished: GepaRunResult) -> None:
    html = finished._repr_html_()
    # The chart and the lineage, each for a phone and for a window.
    assert html.count("<svg") == 4
    assert "lineage of the candidates" in html
    assert "prefers-color-scheme:dark" in html
    assert finished.claim is not None
    assert finished.claim.gain is not None
    gain = finished.claim.gain
    assert html.count(f"Held-out {gain.estimate:+.3f} [{gain.low:.3f}, {gain.high:.3f}]") == 1
    assert "hard to explain by luck" in html
    assert "<script" not in html
    added = [piece for change, piece in _diff(finished) if change == "added"]
    assert added
    assert all(piece in html for piece in added if piece.isalnum())


def _diff(result: GepaRunResult) -> list[tuple[str, str]]:
    from synth_optimizers.diff import word_diff

    before, after = result.initial_prompt["router_prompt"], result.best_prompt["router_prompt"]
    pieces = word_diff(before, after)
    assert "".join(text for change, text in pieces if change != "added") == before
    assert "".join(text for change, text in pieces if change != "removed") == after
    return list(pieces)


def test_a_mapping_and_a_file_give_the_same_run(example: Example, finished: GepaRunResult, tmp_path: Path) -> None:
    path = example_config(tmp_path, example, **SMALL)
    mapping = GepaRun.from_toml(path).config.to_dict()
    mapping["run"] |= {"run_id": "mapped", "output_dir": tmp_path / "runs"}
    result = GepaRun.from_config(_without_nulls(mapping)).execute()
    assert so.events_compare(result.normalized_event_feed_path, finished.event_feed_path)
    assert result.run_id == "mapped"


def _without_nulls(value: Any) -> Any:  # noqa: ANN401 (any JSON value)
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return value


def test_events_arrive_during_the_run(slow: Example, tmp_path: Path) -> None:
    with GepaRun.from_toml(example_config(tmp_path, slow, **SMALL)).start() as handle:
        events = handle.iter_events()
        first = next(events)
        assert (first.sequence_number, first.type, first.run_id) == (0, "gepa.run.started", "ticket-router")
        accepted = next(event for event in events if event.type == "candidate.evaluated")
        assert not handle.is_done
        status = handle.status()
        assert not status.is_terminal
        assert status.is_held
        assert status.seed_train_score is not None
        assert status.seed_train_score.mean == accepted.fields["score"]["mean"]
        best = handle.best()
        assert best is not None
        assert best.candidate_id == status.best_candidate_id
        assert "router_prompt" in best.payload
        rest = list(events)
    assert [event.sequence_number for event in rest] == list(
        range(accepted.sequence_number + 1, accepted.sequence_number + 1 + len(rest))
    )
    assert rest[-1].type in {"gepa.run.finished", "optimizer.state.transitioned"}
    late = list(handle.iter_events(from_sequence=rest[-1].sequence_number))
    assert late == [rest[-1]]
    assert handle.is_done
    assert handle.wait() == handle.wait()
    assert handle.status().state == "completed"


def test_wait_raises_timeout_error_during_the_run(slow: Example, tmp_path: Path) -> None:
    handle = GepaRun.from_toml(example_config(tmp_path, slow, **SMALL)).start()
    with pytest.raises(TimeoutError, match="ticket-router has not ended after 0 s"):
        handle.wait(0)
    next(event for event in handle.iter_events() if event.type == "rollout.finished")
    assert handle.cancel("enough")
    with pytest.raises(so.CancelledError, match="enough") as caught:
        handle.wait(WAIT_TIMEOUT_SECONDS)
    assert "same cache" in caught.value.hint
    assert not handle.cancel()
    assert handle.status().state == "cancelled"


def test_stop_ends_the_search_early_with_held_out_scores(slow: Example, tmp_path: Path) -> None:
    handle = GepaRun.from_toml(example_config(tmp_path, slow)).start()
    next(event for event in handle.iter_events() if event.type == "candidate.evaluated")
    assert handle.stop("that will do")
    result = handle.wait(WAIT_TIMEOUT_SECONDS)
    assert result.scores.seed_heldout is not None
    assert result.stopped_by is not None
    assert result.stopped_by["kind"] == "external"


def test_a_failing_block_leaves_a_resumable_run(slow: Example, finished: GepaRunResult, tmp_path: Path) -> None:
    path = example_config(tmp_path, slow, **SMALL)
    handle = GepaRun.from_toml(path).start()
    with pytest.raises(ZeroDivisionError), handle:
        _fail_after_the_first_rollout(handle)
    with pytest.raises(so.CancelledError, match="interrupted") as caught:
        handle.wait()
    assert "gepa resume" in caught.value.hint
    assert not handle.status().is_terminal
    partial = GepaRunResult.from_run_dir(handle.run_dir)
    assert (partial.status, partial.failure, partial.best_prompt) == ("interrupted", None, {})
    assert partial.rollouts["finished"] >= 1
    result = GepaRun.from_run_dir(handle.run_dir).execute()
    assert so.events_compare(result.event_feed_path, finished.event_feed_path)
    resumed = [event for event in _feed(result) if event.type == "run.resumed"]
    assert len(resumed) == 1


def _fail_after_the_first_rollout(handle: RunHandle) -> float:
    next(event for event in handle.iter_events() if event.type == "rollout.finished")
    return 1 / 0


def _feed(result: GepaRunResult) -> list[RunEvent]:
    lines = Path(result.event_feed_path).read_text(encoding="utf-8").splitlines()
    return [RunEvent.from_line(line) for line in lines]


CTRL_C = """
import sys
from synth_optimizers import GepaRun
try:
    GepaRun.from_toml(sys.argv[1]).execute()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def _process(code: str, config: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, str(config)], stdout=subprocess.PIPE, text=True)  # noqa: S603


def _wait_until_running(run_dir: Path) -> None:
    feed = run_dir / "events.jsonl"
    wait_until("a rollout", lambda: feed.exists() and "rollout.finished" in feed.read_text())


def test_ctrl_c_saves_the_run(slow: Example, tmp_path: Path) -> None:
    path = example_config(tmp_path, slow, **SMALL)
    with _process(CTRL_C, path) as process:
        _wait_until_running(tmp_path / "runs" / "ticket-router")
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=WAIT_TIMEOUT_SECONDS)
    assert (process.returncode, said) == (0, "interrupted\n")
    status = RunStatus.read(tmp_path / "runs" / "ticket-router")
    assert not status.is_terminal
    assert not status.is_held


FORK = """
import os, sys
from synth_optimizers import GepaRun, StateTransitionError
handle = GepaRun.from_toml(sys.argv[1]).start()
child = os.fork()
if child == 0:
    try:
        handle.wait(1)
    except StateTransitionError as error:
        os.write(1, f"{error} {error.hint}".encode())
    os.write(1, repr(handle).encode())
    sys.exit(0)
os.waitpid(child, 0)
handle.cancel()
"""


def test_use_after_fork_raises_a_clear_error(slow: Example, tmp_path: Path) -> None:
    with _process(FORK, example_config(tmp_path, slow, **SMALL)) as process:
        said, _ = process.communicate(timeout=WAIT_TIMEOUT_SECONDS)
    assert f"belongs to process {process.pid}" in said
    assert "start runs after the fork" in said
    assert "RunHandle(run_id='ticket-router'" in said
    assert "Traceback" not in said


LEFT = """
import signal, sys, time
from synth_optimizers import GepaRun

class Sub:
    def on_event(self, event): pass
    def close(self, result, error): print("closed with", type(error).__name__, flush=True)

run = GepaRun.from_toml(sys.argv[1])
if sys.argv[2:] == ["dropped"]:
    run.start(subscribers=[Sub()])
    print("started", flush=True)
    sys.stdin.readline()
else:
    def alarm(number, frame):
        raise TimeoutError("too long")
    signal.signal(signal.SIGUSR1, alarm)
    try:
        run.execute(subscribers=[Sub()])
    except TimeoutError:
        print("too long", flush=True)
"""


@pytest.mark.parametrize("how", ["dropped", "signalled"])
def test_a_run_without_references_is_saved_at_exit(how: str, slow: Example, tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "ticket-router"
    path = example_config(tmp_path, slow, **SMALL)
    arguments = [sys.executable, "-c", LEFT, str(path), *(["dropped"] if how == "dropped" else [])]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(arguments, text=True, **pipes) as process:  # type: ignore[call-overload] # noqa: S603
        _wait_until_running(run_dir)
        if how == "signalled":
            process.send_signal(signal.SIGUSR1)
        said, _ = process.communicate("\n", timeout=WAIT_TIMEOUT_SECONDS)
    assert "closed with CancelledError" in said
    assert "Traceback" not in said
    status = RunStatus.read(run_dir)
    assert not status.is_terminal
    assert not status.is_held
    assert "run.interrupted" in (run_dir / "events.jsonl").read_text(encoding="utf-8")


def test_a_moved_run_has_current_paths(finished: GepaRunResult, tmp_path: Path) -> None:
    moved = shutil.copytree(finished.run_dir, tmp_path / "moved")
    result = GepaRunResult.from_run_dir(moved)
    assert Path(result.score_chart_path) == moved / "score_chart.svg"
    assert Path(result.lineage_path) == moved / "lineage.svg"
    assert result.initial_prompt == finished.initial_prompt
    with pytest.raises(TypeError):
        hash(result)
    result.to_dict()["usage"]["sent_calls"] = -1
    assert result.usage["sent_calls"] == finished.usage["sent_calls"]


def test_two_runs_and_other_threads_run_concurrently(slow: Example, tmp_path: Path) -> None:
    runs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        runs.append(GepaRun.from_toml(example_config(tmp_path / name, slow, **SMALL, run__run_id=name)))
    handles = [run.start() for run in runs]
    seen_during: list[str] = []

    def watch() -> None:
        seen_during.extend(event.type for event in handles[1].iter_events() if not handles[0].is_done)

    watcher = threading.Thread(target=watch)
    watcher.start()
    results = [handle.wait(WAIT_TIMEOUT_SECONDS) for handle in handles]
    watcher.join()
    # The main thread waits for the first run, and this thread sees how far the second one is.
    assert "candidate.evaluated" in seen_during
    assert so.events_compare(results[0].event_feed_path, results[1].event_feed_path)


def active() -> set[NativeRun]:
    """Return the runs that the interpreter would have to save at exit."""
    return {run.native for run in handles._active_runs}


def test_a_finished_run_is_dropped(finished: GepaRunResult) -> None:
    # A finished run is dropped at once, or, with a subscriber, once that has received everything.
    resumed = GepaRun.from_run_dir(finished.run_dir)
    waited = resumed.start(subscribers=[RecordingSubscriber()])
    waited.wait()
    assert waited._native not in active()
    forgotten = resumed.start()
    list(forgotten.iter_events())
    later = resumed.start()
    assert forgotten._native not in active()
    later.wait()
    assert not active() & {waited._native, forgotten._native, later._native}


def test_the_handle_of_a_finished_run_is_released(finished: GepaRunResult) -> None:
    resumed = GepaRun.from_run_dir(finished.run_dir)
    for count in (0, 1):
        handle = resumed.start(subscribers=[RecordingSubscriber()] * count)
        assert list(handle.iter_events())
        assert handle.is_done
        if count:
            handle._subscriber_thread.join()
        released = weakref.ref(handle)
        del handle
        gc.collect()
        assert released() is None
        assert not active()


def test_runs_can_be_awaited(slow: Example, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = GepaRun.from_toml(example_config(tmp_path / "a", slow, **SMALL))
    second = GepaRun.from_toml(example_config(tmp_path / "b", slow, **SMALL))

    async def both() -> GepaRunResult:
        task = asyncio.create_task(second.aexecute())
        result = await first.aexecute()
        await task
        return result

    assert asyncio.run(both()).status == "completed"


def test_a_cancelled_task_saves_its_run(slow: Example, tmp_path: Path) -> None:
    run = GepaRun.from_toml(example_config(tmp_path, slow, **SMALL))

    async def cancelled() -> None:
        task = asyncio.create_task(run.aexecute())
        await asyncio.to_thread(_wait_until_running, tmp_path / "runs" / "ticket-router")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    status = RunStatus.read(tmp_path / "runs" / "ticket-router")
    assert not status.is_terminal
    assert not status.is_held


def test_another_process_can_end_a_run(slow: Example, tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "ticket-router"
    code = "import sys; from synth_optimizers import GepaRun; GepaRun.from_toml(sys.argv[1]).execute()"
    with _process(f"import sys; sys.stderr = sys.stdout\n{code}", example_config(tmp_path, slow)) as process:
        _wait_until_running(run_dir)
        asked = ask_run(run_dir, "cancel", "not needed any more")
        said, _ = process.communicate(timeout=WAIT_TIMEOUT_SECONDS)
    assert asked["acknowledgement"] == "accepted"
    assert str(process.pid) in asked["reason"]
    assert "CancelledError" in said
    assert "not needed any more" in said
    again = ask_run(run_dir, "cancel", "not needed any more")
    assert (again["acknowledgement"], again["state"]) == ("noop", "cancelled")
    with pytest.raises(so.ConfigError, match="explode"):
        ask_run(run_dir, "explode", "")


class RecordingSubscriber:
    """Records the events and the outcome."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []
        self.end: list[tuple[GepaRunResult | None, BaseException | None]] = []

    def on_event(self, event: RunEvent) -> None:
        """Record the event."""
        self.events.append(event)

    def close(self, result: GepaRunResult | None, error: BaseException | None) -> None:
        """Record the outcome."""
        self.end.append((result, error))


class FailingSubscriber(RecordingSubscriber):
    """Fails at its third event."""

    def on_event(self, event: RunEvent) -> None:
        """Record two events, then fail."""
        super().on_event(event)
        if len(self.events) == 3:
            raise ValueError("no more")


def test_subscribers_receive_every_event_and_cannot_break_the_run(example: Example, tmp_path: Path) -> None:
    recording, failing = RecordingSubscriber(), FailingSubscriber()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result = GepaRun.from_toml(example_config(tmp_path, example, **SMALL)).execute(subscribers=[failing, recording])
    assert recording.events == _feed(result)
    assert recording.end == [(result, None)]
    assert (len(failing.events), failing.end) == (3, [])
    assert [str(warning.message) for warning in warned] == [
        "FailingSubscriber receives no further events: ValueError('no more')"
    ]


def test_a_failed_run_raises_the_class_of_its_cause(example: Example, tmp_path: Path) -> None:
    def fails(expected: type[so.SynthOptimizerError], **changes: object) -> so.SynthOptimizerError:
        recording = RecordingSubscriber()
        with pytest.raises(expected) as caught:
            GepaRun.from_toml(example_config(tmp_path, example, **SMALL | changes)).execute(subscribers=[recording])
        assert type(caught.value) is expected
        assert caught.value.hint
        [(result, reported)] = recording.end
        assert (result, type(reported), str(reported)) == (None, expected, str(caught.value))
        return caught.value

    error = fails(so.ContainerContractError, container__url="http://127.0.0.1:9", run__run_id="dead")
    assert "127.0.0.1:9" in str(error)
    status = RunStatus.read(tmp_path / "runs" / "dead")
    assert status.failure is not None
    assert status.failure["error_code"] == so.ContainerContractError.error_code
    result = GepaRunResult.from_run_dir(tmp_path / "runs" / "dead")
    assert (result.status, result.failure, result.best_candidate) == ("failed", status.failure, {})
    assert (result.best_prompt, result.scores.seed_train, result.generations) == ({}, None, 0)
    assert "127.0.0.1:9" in result._repr_html_()
    fails(so.CacheMissError, cache__mode="readonly", run__run_id="uncached")
    fails(so.ProposerError, proposer__api_key_env="NO_SUCH_KEY_HERE", run__run_id="keyless")


def test_the_result_of_a_cancelled_run_has_what_was_measured(slow: Example, tmp_path: Path) -> None:
    handle = GepaRun.from_toml(example_config(tmp_path, slow)).start()
    next(event for event in handle.iter_events() if event.type == "candidate.evaluated")
    handle.cancel("enough")
    with pytest.raises(so.CancelledError):
        handle.wait(WAIT_TIMEOUT_SECONDS)
    result = GepaRunResult.from_run_dir(handle.run_dir)
    best = handle.best()
    assert best is not None
    assert (result.status, result.best_prompt) == ("cancelled", dict(best.payload))
    assert result.best_candidate["candidate_id"] == best.candidate_id
    assert result.scores.seed_train == handle.status().seed_train_score
    assert (result.scores.heldout_gain, result.cost_usd) == (None, handle.status().cost_usd)
    assert result.usage["sent_calls"] == handle.status().sent_calls
    assert result.failure is not None
    assert result.failure["message"] == "enough"
    assert GepaRunResult.from_run_dir(handle.run_dir) == result
    assert ">cancelled</span>" in result._repr_html_()


def test_an_earlier_failure_is_not_shown_after_a_later_start(slow: Example, tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "ticket-router"
    with pytest.raises(so.ContainerContractError):
        GepaRun.from_toml(example_config(tmp_path, slow, container__url="http://127.0.0.1:9")).execute()
    assert RunStatus.read(run_dir).failure is not None
    handle = GepaRun.from_toml(example_config(tmp_path, slow)).start()
    next(event for event in handle.iter_events() if event.type == "rollout.finished")
    handle.interrupt()
    with pytest.raises(so.CancelledError):
        handle.wait(WAIT_TIMEOUT_SECONDS)
    status = RunStatus.read(run_dir)
    assert (status.is_terminal, status.is_held, status.failure) == (False, False, None)


def test_a_run_is_executed_by_one_process(slow: Example, tmp_path: Path) -> None:
    path = example_config(tmp_path, slow, **SMALL)
    handle: RunHandle
    with GepaRun.from_toml(path).start() as handle:
        next(handle.iter_events())
        with pytest.raises(so.OptimizerIoError, match="in use by pid"):
            GepaRun.from_toml(path).execute()
        db = handle.run_dir / "workspace.sqlite"
        with pytest.raises(so.OptimizerIoError, match="in use by pid"):
            so.workspace_vacuum(db)
        assert so.workspace_status(db)["workspace_invariant_report"]["status"] == "pass"


def test_workspaces_and_feeds_can_be_checked(finished: GepaRunResult, tmp_path: Path) -> None:
    db = finished.workspace_db_path
    status = so.workspace_status(db)
    assert status["runs"][0]["state"] == "completed"
    assert status["workspace_invariant_report"]["violations"] == []
    assert so.workspace_rebuild(db, check=True)["differing"] == 0
    with contextlib.closing(sqlite3.connect(db)) as damaged:
        damaged.execute("UPDATE run_state SET totals = json_set(totals, '$.generations', 99)")
        damaged.commit()
    assert so.workspace_rebuild(db, check=True)["differences"][0]["table"] == "run_state"
    assert so.workspace_rebuild(db, check=False)["replaced"]
    assert so.workspace_rebuild(db, check=True)["differing"] == 0
    size = so.workspace_vacuum(db)
    assert 0 < size["bytes_after"] <= size["bytes_before"]
    assert "held-out" in so.events_replay(finished.event_feed_path)
    lines = Path(finished.event_feed_path).read_text(encoding="utf-8").splitlines()
    other = tmp_path / "events.jsonl"
    other.write_text("\n".join([lines[0].replace('"seed":7', '"seed":8'), *lines[1:]]) + "\n", encoding="utf-8")
    with pytest.raises(so.EventCompareError, match=r"differs at fields\.seed"):
        so.events_compare(finished.event_feed_path, other)
    assert (Path(finished.run_dir).parent / "latest").resolve() == Path(finished.run_dir)
