"""The views of a run, drawn from recorded events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from synth_optimizers import _synth_optimizers as extension
from synth_optimizers.cli.live import LiveView, Panel, active_limits
from synth_optimizers.cli.summary import summary_lines
from synth_optimizers.cli.view import STAGES, PlainView, Progress
from synth_optimizers.events import RunEvent

RECORDED = Path(__file__).parent / "recorded" / "events.jsonl"
LIMITS = {
    "max_generations": 2,
    "max_total_rollouts": 60,
    "max_train_rollouts": 50,
    "max_heldout_rollouts": 10,
    "max_cost_usd": 1.0,
    "max_total_tokens": 100_000,
    "max_prompt_tokens": 90_000,
    "max_completion_tokens": 10_000,
    "max_time_seconds": 3600,
}


def recorded() -> list[RunEvent]:
    return [RunEvent.from_line(line) for line in RECORDED.read_text().splitlines()]


def folded(until: int | None = None) -> Progress:
    run = Progress()
    for event in recorded()[:until]:
        run.apply(event)
    return run


def count_until(kind: str) -> int:
    return 1 + next(place for place, event in enumerate(recorded()) if event.type == kind)


def draw(run: Progress, width: int, later: float = 12.0, **panel: Any) -> list[str]:  # noqa: ANN401
    console = Console(width=width, color_system=None, force_terminal=True, legacy_windows=False)
    drawn = Panel(run, LIMITS, lambda: 3, clock=lambda: run.latest + later)
    drawn.started = run.latest
    for name, value in panel.items():
        setattr(drawn, name, value)
    with console.capture() as capture:
        console.print(drawn)
    return capture.get().splitlines()


def test_every_stage_of_a_rollout_has_words() -> None:
    schemas = extension.service_openapi()["components"]["schemas"]
    assert set(schemas["Stage"]["enum"]) == set(STAGES)


def test_the_fold_agrees_with_the_totals_of_the_final_event() -> None:
    run, end = folded(), recorded()[-1].fields
    assert run.final_event is not None
    totals, shown = run.fold.totals(), run.fold.shown()
    usage = totals["usage"]
    assert (run.state, totals["best"]["candidate_id"]) == ("completed", end["best_candidate_id"])
    assert (totals["candidates"], totals["generations"]) == (end["candidates"], end["generations"])
    assert {"train": totals["train_rollouts"], "heldout": totals["heldout_rollouts"]} == {
        split: end["rollouts"][split] for split in ("train", "heldout")
    }
    assert usage["rollouts"]["unknown_outcomes"] == end["rollouts"]["unknown_outcomes"]
    assert usage["cost_usd"] is end["bill"]["cost_usd"] is None
    names = ("sent_calls", "cached_calls", "prompt_tokens", "completion_tokens", "total_tokens")
    assert {name: usage[name] for name in names} == {name: end["bill"][name] for name in names}
    scores = {(named["role"], named["split"]): named["score"] for named in end["scores"]}
    assert shown["seed_train_score"] == scores["seed", "train"]
    assert shown["best_train_score"] == scores["best", "train"]
    assert (totals["rollouts_outstanding"], shown["evaluations"], shown["turns"]) == (0, [], [])


def test_every_prefix_of_a_run_can_be_drawn_within_the_width() -> None:
    run = Progress()
    for place, event in enumerate(recorded()):
        run.apply(event)
        for width in (40, 80, 200) if place % 5 == 0 else ():
            assert max(map(len, draw(run, width))) <= width


@pytest.mark.parametrize("width", [80, 200])
def test_the_view_shows_every_active_limit(width: int) -> None:
    text = "\n".join(draw(folded(count_until("generation.completed")), width))
    for words in ("1 of 2", "of 60", "of 50", "0 of 10", "of $1.0000", "of 100,000", "of 90,000", "of 1h00m"):
        assert words in text


def test_the_view_shows_what_the_run_waits_for_and_how_long() -> None:
    setup = draw(folded(count_until("gepa.run.started")), 80)
    assert setup[-1].startswith("now          12.0s loading: container http://")
    turn = draw(folded(count_until("proposer.started")), 80)
    assert "now          12.0s proposer writes proposals for generation 0" in turn
    rollouts = draw(folded(count_until("rollout.requested")), 80)
    assert any("12.0s initial evaluation of gepa_" in line and "0 of 6 rollouts" in line for line in rollouts)


def test_an_unknown_cost_is_shown_as_unknown() -> None:
    assert any("cost unknown" in line for line in draw(folded(), 80))
    assert ("cost", "unknown") in summary_lines(folded(), Path("runs/recorded"), 0.0)


def test_unset_limits_are_not_shown() -> None:
    run = folded()
    assert active_limits({"max_cost_usd": 0.0, "max_total_tokens": None}, run, run.latest) == []


def test_the_plain_view_prints_one_line_per_relevant_event() -> None:
    run = Progress()
    told = [(event.type, line.text) for event in recorded() for line in run.apply(event)]
    kinds = [kind for kind, _ in told]
    assert "rollout.finished" not in kinds
    assert "optimizer.state.transitioned" not in kinds
    assert kinds.count("candidate.minibatch_evaluated") == 4
    assert kinds.count("candidate.rejected") == 2
    assert any("6 rollouts in 0." in text for kind, text in told if kind == "candidate.evaluated")
    assert any(" by scripted in 1.5s, cost $" in text for kind, text in told if kind == "proposer.completed")
    assert all("\n" not in text for _, text in told)
    # Two rollouts failed for the same reason.
    assert [text for kind, text in told if kind == "rollout.failed"] == [
        "gepa_45b651dfae51 on train:0: failed; trying again: POST /rollouts answered 500: "
        '{"detail":"the task broke"} (further failures of this kind are only counted)'
    ]


def test_an_unknown_event_type_is_shown_with_its_message() -> None:
    event = RunEvent(0, "run", "2026-01-01T00:00:00.000Z", "something.new", {}, "something new happened")
    assert [line.text for line in Progress().apply(event)] == ["something new happened"]


@pytest.mark.parametrize(
    ("mean", "error", "is_warned"), [(0.0, 0.0, True), (0.3, 0.0, True), (1.0, 0.0, False), (0.5, 0.1, False)]
)
def test_constant_scores_of_the_initial_candidate_are_warned_about(mean: float, error: float, is_warned: bool) -> None:
    place = count_until("candidate.evaluated") - 1
    run, evaluated = folded(place), recorded()[place]
    score = {"mean": mean, "n": 6, "standard_error": error, "low": None, "high": None}
    lines = run.apply(replace(evaluated, fields={**evaluated.fields, "score": score}))
    warned = [line.text for line in lines if line.level == "warning"]
    assert bool(warned) is is_warned
    assert all(text.startswith(f"all 6 train rows have the score {mean:.4f}: ") for text in warned)


def test_the_views_show_visible_text_only(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[8mhidden\u202e\u200b"
    event = RunEvent(0, "run", "2026-01-01T00:00:00.000Z", "something.new", {}, hostile)
    run = Progress()
    [(_, level, text)] = run.apply(event)
    PlainView(run).show_line(level, text)
    shown = capsys.readouterr().err
    live = LiveView(Panel(run, LIMITS, lambda: None))
    live.show_line(level, text)
    live.close([("reason", hostile)])
    for written in (shown, capsys.readouterr().err):
        assert "\N{REPLACEMENT CHARACTER}[8mhidden" in written
        assert not set(written) & set("\x1b\u202e\u200b")


def test_reminders_of_a_long_wait_become_less_frequent(capsys: pytest.CaptureFixture[str]) -> None:
    run, now = folded(count_until("proposer.started")), 0.0
    view = PlainView(run, clock=lambda: now)
    spoken = []
    for second in range(400):
        view.tick(float(second))
        if capsys.readouterr().err:
            spoken.append(second)
    assert spoken == [10, 40, 100, 160, 220, 280, 340]


def test_idle_time_does_not_count_as_elapsed_time() -> None:
    run = folded(count_until("generation.completed"))
    before = run.elapsed(run.latest)
    fields = {"stored_events": 1, "waiting_answers": 0, "unknown_outcomes": 0}
    run.apply(RunEvent(99, "recorded", "2026-11-17T11:51:00.000Z", "run.resumed", fields, "resumed"))
    assert run.elapsed(run.latest) == pytest.approx(before)


def test_the_summary_names_gain_cost_stop_and_the_next_command() -> None:
    lines = summary_lines(folded(), Path("runs/a run"), 0.0)
    text = "\n".join(f"{label} {words}" for label, words in lines)
    assert "seed 0.1667 [0.0301, 0.5635] on 6 rows" in text
    assert "gain +0.3333 [" in text
    assert "stopped by max_generations (2 of 2)" in text
    assert "next synth-optimizers runs best 'runs/a run' --out best.txt" in text


def test_the_summary_of_an_interrupted_run_says_how_to_resume() -> None:
    lines = summary_lines(folded(count_until("generation.completed")), Path("runs/recorded"), 0.0)
    assert lines[-1] == ("next", "synth-optimizers gepa resume runs/recorded")
