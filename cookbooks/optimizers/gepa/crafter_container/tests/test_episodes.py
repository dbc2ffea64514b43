"""Episodes: they are reproducible, follow only the prompt, and are reported correctly."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from crafter_container import llm_policy, recipes
from crafter_container.episodes import play_report
from crafter_container.world import Game, generate

COOKBOOKS = Path(__file__).resolve().parents[2]
WOOD = "Collect wood from a tree."
TABLE = f"If you have 2 wood, place a table once.\n{WOOD}"
PICKAXE = f"If you have 1 wood, make a wood pickaxe near the table once.\n{TABLE}"


@cache
def world(seed: int = 1000) -> bytes:
    return generate(seed)


def played(prompt: str, steps: int = 150) -> dict[str, Any]:
    return play_report(world(), prompt, steps)


def test_an_episode_repeats_exactly_in_another_process() -> None:
    script = (
        "from crafter_container.world import generate\nfrom crafter_container.episodes import play_report\n"
        f"import json; print(json.dumps(play_report(generate(1000), {PICKAXE!r}, 150)))"
    )
    other = subprocess.run(  # noqa: S603 (script of this test)
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": str(COOKBOOKS)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(other.stdout) == played(PICKAXE)


def test_two_episodes_do_not_share_a_world() -> None:
    assert played(PICKAXE) == played(PICKAXE)


@pytest.mark.parametrize(
    ("prompt", "reached"),
    [
        ("", set()),
        (WOOD, {"collect_wood"}),
        (TABLE, {"collect_wood", "place_table"}),
        (PICKAXE, {"collect_wood", "place_table", "make_wood_pickaxe"}),
    ],
)
def test_only_actions_of_the_prompt_are_executed(prompt: str, reached: set[str]) -> None:
    assert set(played(prompt)["details"]["achievements"]) == reached


def test_the_order_of_rules_matters() -> None:
    late = played(f"{WOOD}\n{TABLE}")["details"]["achievements"]
    assert played(TABLE)["details"]["achievements"]["place_table"] < late["place_table"]


def test_a_blocked_rule_names_its_requirements() -> None:
    told = played(f"Place a table.\n{WOOD}", 60)
    assert any("it takes 2 wood" in reason for reason in told["details"]["rules"][0]["blocked"])
    assert "Blocked: it takes 2 wood" in told["feedback"]


def test_achievements_within_reach_are_reported() -> None:
    names = [goal["achievement"] for goal in played(WOOD)["details"]["within_reach"]]
    assert "place_table" in names
    assert "make_wood_pickaxe" not in names
    assert "no rule asks for it: place table" in played(WOOD)["feedback"]


def test_a_death_has_a_cause() -> None:
    told = play_report(world(), "", 2000)
    assert told["details"]["death"]
    assert "The player died at step" in told["feedback"]
    assert told["objectives"]["survival"] < 1.0


def test_a_generated_world_equals_that_of_the_package() -> None:
    from crafter import constants, engine, objects, worldgen

    theirs = engine.World((64, 64), constants.materials, (12, 12))
    theirs.reset(seed=1000)
    player = objects.Player(theirs, (32, 32))
    theirs.add(player)
    worldgen.generate_world(theirs, player)
    ours = Game(world())._world
    assert (ours._mat_map == theirs._mat_map).all()
    assert (ours._obj_map == theirs._obj_map).all()


def test_every_achievement_has_a_recipe() -> None:
    assert len(recipes.GOALS) == 22
    assert recipes.GOALS["make_iron_sword"].near == ("table", "furnace")


def test_a_model_writes_rules_and_the_calls_are_bounded() -> None:
    seen: list[str] = []

    async def ask(messages: Sequence[Mapping[str, str]]) -> tuple[str, Mapping[str, Any]]:
        seen.append("\n".join(message["content"] for message in messages))
        return (PICKAXE if len(seen) > 1 else "I do not know."), {"prompt_tokens": 10, "completion_tokens": 3}

    told = asyncio.run(llm_policy.play(world(), "Think of wood.", 200, 4, ask))
    assert len(seen) == 4
    assert "Think of wood." in seen[0]
    assert "You have nothing." in seen[0]
    assert "Collect wood from a tree. Success" in seen[-1]
    assert "make_wood_pickaxe" in told["details"]["achievements"]
    assert told["usage"] == {"prompt_tokens": 40, "completion_tokens": 12}
