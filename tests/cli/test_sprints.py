"""A search in sprints, the default, as the commands show it: the choice, the lines of a sprint, the summary."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.example import Example, example_config

from cli.commands import CommandResult, run_cli
from cli.terminal import Terminal

CHECK = ("gepa", "check", "--config", "gepa.toml")
RUN = ("gepa", "run", "--config", "gepa.toml")
REASON = "checking the sum of several changes needs fewer rollouts than evaluating each"
NAME = r"gepa_[0-9a-f]{12}"


@pytest.fixture(scope="module")
def place(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the configuration of the example, which sets nothing of the search but limits."""
    place = tmp_path_factory.mktemp("sprints")
    example_config(place, example, run__run_id="router")
    return place


@pytest.fixture(scope="module")
def done(place: Path) -> CommandResult:
    """Return the run of that configuration."""
    ended = run_cli(*RUN, cwd=place)
    assert ended.code == 0, ended.stderr
    return ended


def manifest(place: Path) -> dict[str, Any]:
    """Return the manifest of the run."""
    found: dict[str, Any] = json.loads((place / "runs/router/result_manifest.json").read_text())
    return found


@pytest.mark.parametrize("arguments", [CHECK, (*RUN, "--dry-run")], ids=["check", "dry run"])
def test_the_choice_and_its_reason_are_known_before_the_run(arguments: tuple[str, ...], place: Path) -> None:
    ended = run_cli(*arguments, cwd=place)
    assert ended.code == 0, ended.stderr
    assert f"\nsearch              sprint: {REASON}\n" in ended.stdout
    assert "\nseed evaluation     32 rollouts\n" in ended.stdout
    assert "for a glance and its share of a check\n" in ended.stdout
    plan = json.loads(run_cli(*arguments, "--json", cwd=place).stdout)
    plan = plan.get("plan", plan)
    assert (plan["search"], plan["search_reason"]) == ("sprint", REASON)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("gepa.search=reference", '`gepa.search` is "reference"'),
        ("gepa.merge.enabled=true", "`gepa.merge.enabled` belongs to it"),
        ("dataset.train_seeds=0..7", "552 rollouts are more than 50 for each of 8 rows"),
    ],
)
def test_settings_of_the_reference_search_and_few_rows_choose_it(setting: str, reason: str, place: Path) -> None:
    ended = run_cli(*RUN, "--dry-run", "--set", setting, cwd=place)
    assert ended.code == 0, ended.stderr
    assert f"\nsearch              reference: {reason}" in ended.stdout


def test_the_lines_of_a_run_show_noise_heads_and_checks(done: CommandResult) -> None:
    for line in (
        f"sprint search: {REASON}",
        "scores repeat exactly in 16 repeated rollouts",
        f"{NAME} is the head of sprint 0, 1 change after the best candidate",
        f"check 0 of {NAME} against {NAME} after \\d changes",
        r"check 0 adopted: better: \+0\.\d+ on \d+ rows, better with probability 0\.9\d+",
        f"{NAME} accepted: check_adopted",
        f"{NAME} superseded: a candidate with its change was adopted",
    ):
        assert re.search(f"  {line}", done.stderr), line


def test_the_summary_names_the_search_the_claim_and_what_rollouts_were_for(done: CommandResult, place: Path) -> None:
    run = manifest(place)
    assert run["claim"]["verdict"] == "better"
    purposes = run["rollouts_by_purpose"]
    assert sum(purposes.values()) == run["rollouts"]["train"] + run["rollouts"]["heldout"] <= 600
    assert {name for name, count in purposes.items() if count} >= {"initial", "repeat", "screening", "check", "heldout"}
    assert purposes["full_evaluation"] == 0
    said = f"{purposes['initial']} initial, {purposes['repeat']} repeat, {purposes['reference']} reference, "
    said += f"{purposes['screening']} screening, {purposes['check']} check"
    counts = f"{run['generations']} generations, {run['candidates']} candidates"
    for line in (f"result      {run['claim']['sentence']}", f"search      sprint: {counts}", f"            {said}"):
        assert f"\n{line}\n" in done.stderr
    shown = run_cli("runs", "show", "router", cwd=place)
    assert f"\nresult      {run['claim']['sentence']}\nsearch      sprint: {REASON}\n" in shown.stdout
    assert f"\n            {said}\n" in shown.stdout
    assert "  check_adopted\n" in shown.stdout


@pytest.mark.usefixtures("done")
def test_the_live_view_shows_the_search_and_the_verdicts(place: Path) -> None:
    # Every answer is in the cache by now.
    terminal = Terminal(*RUN, "--set", "run.run_id=watched", columns=160, cwd=place)
    assert terminal.end() == 0
    for line in (f"sprint search: {REASON}", "check 0 adopted: better: +", "search      sprint: "):
        assert line in terminal.text


def test_a_budget_below_the_first_check_returns_the_initial_text(example: Example, tmp_path: Path) -> None:
    example_config(tmp_path, example, run__run_id="router", gepa__max_total_rollouts=76)
    warned = run_cli(*CHECK, cwd=tmp_path)
    assert warned.code == 0, warned.stderr
    assert "warning[budget/heldout_partial]" in warned.stdout
    ended = run_cli(*RUN, cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    run = manifest(tmp_path)
    assert run["claim"]["verdict"] == "unchanged"
    assert run["best_candidate"]["candidate_id"] == run["scores"]["seed"]["train"]["candidate_id"]
    assert run["rollouts"]["train"] + run["rollouts"]["heldout"] <= 76
    assert "\nresult      no candidate was better than the initial one\n" in ended.stderr
    assert "\nstopped by  max_rollouts (" in ended.stderr


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_very_few_rows_complete_with_a_clear_result(count: int, example: Example, tmp_path: Path) -> None:
    rows = list(range(count))
    limits = {"gepa__max_total_rollouts": 30, "gepa__minibatch_size": None, "gepa__search": "sprint"}
    example_config(
        tmp_path, example, run__run_id="router", dataset__train_seeds=rows, dataset__heldout_seeds=[0, 1], **limits
    )
    planned = run_cli(*CHECK, cwd=tmp_path)
    assert planned.code == 0, planned.stdout
    assert "with 2 held-out rows no gain can be told from luck" in planned.stdout
    ended = run_cli(*RUN, cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    run = manifest(tmp_path)
    assert run["claim"]["verdict"] in ("unchanged", "no_evidence")
    assert f"\nresult      {run['claim']['sentence']}\n" in ended.stderr
