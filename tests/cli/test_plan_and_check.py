"""`gepa run --dry-run` and `gepa check`: the plan of a run and its preflight findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.example import Example

from cli.commands import assert_snapshot, run_cli
from cli.configs import small_config

RUN = ("gepa", "run", "--config", "gepa.toml")
CHECK = ("gepa", "check", "--config", "gepa.toml")


def test_a_dry_run_contacts_nothing_and_writes_nothing(place: Path) -> None:
    ended = run_cli(*RUN, "--dry-run", cwd=place)
    assert_snapshot("dry_run", ended, place)
    assert ended.code == 0
    assert [path.name for path in place.iterdir()] == ["gepa.toml"]


def test_a_dry_run_shows_the_cost_if_estimates_are_configured(place: Path) -> None:
    prices = ("gepa.rollout_estimated_cost_usd=0.01", "gepa.proposer_estimated_cost_usd=0.1")
    sets = [word for price in prices for word in ("--set", price)]
    ended = run_cli(*RUN, "--dry-run", *sets, cwd=place)
    assert "cost                at most $" in ended.stdout
    plan = json.loads(run_cli(*RUN, "--dry-run", "--json", *sets, cwd=place).stdout)
    assert plan["cost"]["known"] is True
    assert plan["worst_case_rollouts"] <= plan["limits"]["total"] == 120


@pytest.mark.parametrize(
    ("name", "change", "stages"),
    [
        # The proposer is asked although other sections have problems.
        ("check_config", ("minibatch_size = 3", "minibatch_sise = 3"), {"config", "proposer"}),
        ("check_bad_toml", ("seed = 7", "seed = = 7"), {"config"}),
    ],
)
def test_all_problems_of_the_configuration_are_reported(
    name: str, change: tuple[str, str], stages: set[str], place: Path
) -> None:
    config = place / "gepa.toml"
    config.write_text(config.read_text().replace(*change).replace('target_modules = ["router_prompt"]', ""))
    ended = run_cli(*CHECK, cwd=place)
    assert_snapshot(name, ended, place)
    assert ended.code == 2
    report = json.loads(run_cli(*CHECK, "--json", cwd=place).stdout)
    assert report["ok"] is False
    assert {blocker["stage"] for blocker in report["blockers"]} == stages


def test_a_missing_file_is_a_blocker(place: Path) -> None:
    ended = run_cli("gepa", "check", "--config", "nowhere.toml", cwd=place)
    assert_snapshot("check_missing_file", ended, place)
    assert ended.code == 2


def test_a_successful_check_shows_facts_and_plan(example: Example, tmp_path: Path) -> None:
    small_config(tmp_path, example)
    ended = run_cli(*CHECK, cwd=tmp_path)
    assert_snapshot("check_ok", ended, tmp_path)
    assert ended.code == 0
    report = json.loads(run_cli(*CHECK, "--json", cwd=tmp_path).stdout)
    assert (report["ok"], report["blockers"]) == (True, [])
    assert report["facts"]["container"]["program_id"] == "ticket_router"
    assert [path.name for path in tmp_path.iterdir()] == ["gepa.toml"]


def test_problems_of_the_file_do_not_hide_other_findings(place: Path) -> None:
    (place / "runs").write_text("not a directory")
    sets = ("proposer.api_key_env=NO_SUCH_KEY", "gepa.max_total_rollouts=3", "gepa.minibatch_sise=2")
    ended = run_cli(*CHECK, *(word for change in sets for word in ("--set", change)), "--json", cwd=place)
    blockers = json.loads(ended.stdout)["blockers"]
    assert {blocker["stage"] for blocker in blockers} == {"budget", "config", "container", "output", "proposer"}
    codes = {blocker["code"]: blocker["location"] for blocker in blockers}
    assert (codes["unknown_key"], codes["budget_too_small"]) == ("--set", "--set")
    assert ended.code in {2, 5}


def test_every_blocker_is_reported_at_once(place: Path) -> None:
    (place / "runs").write_text("not a directory")
    ended = run_cli(*CHECK, "--set", "proposer.api_key_env=NO_SUCH_KEY", cwd=place)
    assert_snapshot("check_blockers", ended, place)
    assert ended.code == 1
    for stage in ("output", "container", "proposer"):
        assert f"error[{stage}/" in ended.stdout


def test_each_value_is_explained_with_its_origin(example: Example, tmp_path: Path) -> None:
    small_config(tmp_path, example)
    ended = run_cli(
        *CHECK, "--explain", "--set", "gepa.max_generations=3", cwd=tmp_path, env={"SYNTH_OPTIMIZERS_RUN_ID": "other"}
    )
    rows = {line.split()[0]: line.split()[1:] for line in ended.stdout.splitlines() if line.count("  ")}
    assert rows["gepa.max_generations"] == ["set", "3"]
    assert rows["run.run_id"] == ["environment:SYNTH_OPTIMIZERS_RUN_ID", "other"]
    assert rows["gepa.carry_failures"] == ["default", "3"]
    assert rows["run.seed"][0].startswith("file:")
    document = json.loads(run_cli(*CHECK, "--explain", "--json", cwd=tmp_path).stdout)
    assert {"path": "gepa.carry_failures", "value": 3, "origin": "default"} in document["values"]


def test_limits_that_are_too_small_are_warned_about_everywhere(example: Example, tmp_path: Path) -> None:
    # 8 train rows, 2 x 4 held-out rows, and two proposals of 8 rollouts need 32 rollouts.
    small_config(tmp_path, example, gepa__max_total_rollouts=25, gepa__minibatch_size=9)
    limit = (
        "`gepa.max_total_rollouts` is 25, but one whole generation and evaluating the initial and the best candidate"
    )
    batch = "`gepa.minibatch_size` is 9, but minibatches are drawn from 8 train rows"
    checked = run_cli(*CHECK, cwd=tmp_path)
    assert f"warning[budget/heldout_partial]: {limit}" in checked.stdout
    assert f"warning[config/minibatch_too_large]: {batch}" in checked.stdout
    for arguments in ((*RUN, "--dry-run"), RUN):
        ended = run_cli(*arguments, cwd=tmp_path)
        assert ended.code == 0, ended.stderr
        assert f"warning: {limit}" in ended.stderr
        assert f": {batch}" in ended.stderr
        assert run_cli(*arguments, "--quiet", cwd=tmp_path).stderr == ""
