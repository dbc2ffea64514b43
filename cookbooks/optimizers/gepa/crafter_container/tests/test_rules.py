"""The controlled English: what is parsed, what is refused, and that rules round-trip."""

from __future__ import annotations

import pytest
from crafter_container.rules import MAKE, PLACE, PRESS, SLEEP, Condition, Rule, UnreadableError, read_prompt, read_rule

RULES = [
    ("Collect wood from a tree.", Rule(PRESS, "tree", gain="wood")),
    ("Place a table once.", Rule(PLACE, "table", is_once=True)),
    ("Plant the sapling on grass.", Rule(PLACE, "plant", on="grass")),
    ("If food is below 4, eat a cow.", Rule(PRESS, "cow", (Condition("below", "food", 4),))),
    ("Sleep when energy is at most 3.", Rule(SLEEP, "", (Condition("below", "energy", 4),))),
    (
        "If you have 1 wood, make a wooden sword near the table.",
        Rule(MAKE, "wood sword", (Condition("at_least", "wood", 1),), ("table",)),
    ),
    (
        "If you have 1 wood and 1 coal and 1 iron, make an iron pickaxe near the table and the furnace.",
        Rule(
            MAKE,
            "iron pickaxe",
            tuple(Condition("at_least", i, 1) for i in ("wood", "coal", "iron")),
            ("table", "furnace"),
        ),
    ),
    (
        "Collect stone until you have 5 stone.",
        Rule(PRESS, "stone", (Condition("below", "stone", 5),)),
    ),
    (
        "If a zombie is within 3 steps and you have no stone sword, fight a zombie.",
        Rule(PRESS, "zombie", (Condition("near", "zombie", 3), Condition("below", "stone sword", 1))),
    ),
    ("Collect sapling from grass, trying up to 20 times.", Rule(PRESS, "grass", gain="sapling", tries=20)),
]


@pytest.mark.parametrize(("line", "rule"), RULES)
def test_a_line_is_parsed(line: str, rule: Rule) -> None:
    assert read_rule(line) == rule


@pytest.mark.parametrize(("line", "rule"), RULES)
def test_a_rule_round_trips(line: str, rule: Rule) -> None:
    assert read_rule(rule.text()) == rule, line


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("Collect wood.", "say from what"),
        ("Be careful.", "no verb"),
        ("If the moon is full, sleep.", "not understood"),
        ("Make a spaceship.", "none of"),
    ],
)
def test_a_line_that_is_not_a_rule_has_a_reason(line: str, why: str) -> None:
    with pytest.raises(UnreadableError, match=why):
        read_rule(line)


def test_a_prompt_keeps_its_order_and_lists_unparsed_lines() -> None:
    prompt = read_prompt("Rules:\n1. Sleep.\n\n- Be brave.\n* Drink water.")
    assert [rule.verb for rule in prompt.rules] == [SLEEP, PRESS]
    assert [line for line, _ in prompt.unread] == ["Be brave."]
