"""The edits of the reflector: each is derived from feedback."""

from __future__ import annotations

from typing import Any

from crafter_container.episodes import play_report
from crafter_container.reflect import propose
from crafter_container.rules import read_prompt
from crafter_container.world import generate
from shared.brief import MERGE, Attempt, Brief, Row

FIELD = "player_rules"
WOOD = "Collect wood from a tree."


def brief(prompt: str, *stories: dict[str, Any], count: int = 1, rejected: list[Attempt] | None = None) -> Brief:
    rows = [Row(f"train:{place}", {}, 1.0, [], story) for place, story in enumerate(stories)]
    texts = {FIELD: prompt}
    return Brief([FIELD], [texts], proposal_count=count, rows=rows, base=texts, rejected=rejected or [])


def story(**told: Any) -> dict[str, Any]:  # noqa: ANN401 (any details)
    rules = [{"rule": 1, "line": WOOD, "steps": 10, "held_steps": 10, "worked": 5}]
    return {"steps": 100, "rules": rules, **told}


def lines(found: Brief, place: int = 0) -> list[str]:
    return [line.partition(". ")[2] for line in propose(found)[place].fields[FIELD].splitlines()]


def test_a_rule_is_added_for_an_achievement_within_reach() -> None:
    goal = {"achievement": "make_wood_sword", "verb": "make", "needs": {"wood": 1}, "near": ["table"]}
    assert lines(brief(WOOD, story(within_reach=[goal]))) == [
        "If you have 1 wood, make a wood sword near the table once.",
        "Collect wood from tree.",
    ]


def test_a_death_adds_a_rule_and_another_changes_its_number() -> None:
    first = lines(brief(WOOD, story(death="a zombie")))
    assert first[0] == "If a zombie is within 2 steps, fight a zombie."
    second = lines(brief("\n".join(first), story(death="a zombie")))
    assert second[0] == "If a zombie is within 3 steps, fight a zombie."


def test_a_blocked_rule_gets_its_missing_condition() -> None:
    blocked = {"rule": 1, "steps": 3, "held_steps": 3, "blocked": {"it takes 1 wood pickaxe (had 0)": 1}}
    assert lines(brief("Collect stone.", {"steps": 9, "rules": [blocked]})) == [
        "If you have 1 wood pickaxe, collect stone."
    ]


def test_an_insufficient_stock_grows() -> None:
    short = [{"achievement": "place_furnace", "item": "stone", "needs": 4, "most": 1}]
    told = story(short_of=short)
    assert lines(brief("Collect stone once.", told)) == ["If you have fewer than 4 stone, collect stone."]


def test_without_feedback_only_numbers_and_order_are_tried() -> None:
    prompt = "If food is below 4, eat a cow.\nCollect wood from tree."
    for made in propose(brief(prompt, count=3)):
        rules = read_prompt(made.fields[FIELD]).rules
        assert sorted(rule.what for rule in rules) == ["cow", "tree"]
    assert propose(brief(WOOD)) == []


def test_a_prompt_without_rules_gets_its_first_rule() -> None:
    goal = {"achievement": "collect_drink", "verb": "collect", "target": "water"}
    assert lines(brief("Be brave.", {"steps": 100, "within_reach": [goal]})) == ["Drink water once."]


def test_equal_briefs_give_equal_proposals_and_rejected_lines_are_not_repeated() -> None:
    told = play_report(generate(1001), WOOD, 200)["details"]
    assert propose(brief(WOOD, told, count=3)) == propose(brief(WOOD, told, count=3))
    tried = "If you have 2 wood, place a table once."
    assert any(tried in made.fields[FIELD] for made in propose(brief(WOOD, told)))
    again = brief(WOOD, told, count=3, rejected=[Attempt("gepa_1", "worse", [tried])])
    assert not any(tried in made.fields[FIELD] for made in propose(again))


def test_every_proposal_parses() -> None:
    told = play_report(generate(1001), WOOD, 200)["details"]
    for made in propose(brief(WOOD, told, count=3)):
        assert not read_prompt(made.fields[FIELD]).unread


def test_a_merge_has_the_rules_of_both_parents() -> None:
    left, right = {FIELD: f"Drink water.\n{WOOD}"}, {FIELD: f"Eat a cow.\n{WOOD}"}
    found = Brief([FIELD], [left, right], operation=MERGE, base=left)
    assert sorted(lines(found)) == ["Collect wood from tree.", "Drink water.", "Eat a cow."]
