"""What a run would take and what stands in its way, told before anything is spent."""

from __future__ import annotations

import json
from pathlib import Path

from cli.commands import assert_snapshot, run_cli

RUN = ("gepa", "run", "--config", "gepa.toml")


def test_a_dry_run_contacts_nothing_and_writes_nothing(place: Path) -> None:
    ended = run_cli(*RUN, "--dry-run", cwd=place)
    assert_snapshot("dry_run", ended, place)
    assert ended.code == 0
    assert [path.name for path in place.iterdir()] == ["gepa.toml"]


def test_a_dry_run_knows_the_cost_where_there_are_estimates(place: Path) -> None:
    prices = ("gepa.rollout_estimated_cost_usd=0.01", "gepa.proposer_estimated_cost_usd=0.1")
    sets = [word for price in prices for word in ("--set", price)]
    ended = run_cli(*RUN, "--dry-run", *sets, cwd=place)
    assert "cost                at most $" in ended.stdout
    plan = json.loads(run_cli(*RUN, "--dry-run", "--json", *sets, cwd=place).stdout)
    assert plan["cost"]["known"] is True
    assert plan["worst_case_rollouts"] <= plan["limits"]["total"] == 120
