"""The requirements of each achievement, read from the tables of the package `crafter`.

The verifier uses them to say which achievements were within reach and why a press had no effect. The player never sees
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from crafter import constants

from crafter_container.rules import MAKE, PLACE, PRESS, Rule
from crafter_container.world import ACHIEVEMENTS

MAX_ENERGY = int(constants.items["energy"]["max"])


@dataclass(frozen=True)
class Goal:
    """The requirements of an achievement: items, things to stand beside, and what to face."""

    achievement: str
    verb: str
    needs: dict[str, int] = field(default_factory=dict)
    near: tuple[str, ...] = ()
    target: str = ""
    is_chance: bool = False


def _read(name: str) -> Goal:
    verb, _, what = name.partition("_")
    if verb == "collect":
        source, info = next((key, value) for key, value in constants.collect.items() if what in value["receive"])
        return Goal(name, "collect", _plain(info["require"]), (), source, info.get("probability", 1) < 1)
    if verb == "place":
        info = constants.place[what]
        everywhere = len(info["where"]) > 1
        return Goal(name, "place", _plain(info["uses"]), (), "" if everywhere else info["where"][0])
    if verb == "make":
        info = constants.make[what]
        return Goal(name, "make", _plain(info["uses"]), tuple(info["nearby"]))
    if name == "wake_up":
        return Goal(name, "sleep")
    return Goal(name, verb, target="ripe plant" if what == "plant" else what)


def _plain(items: dict[str, int]) -> dict[str, int]:
    return {name.replace("_", " "): int(count) for name, count in items.items()}


GOALS: dict[str, Goal] = {name: _read(name) for name in ACHIEVEMENTS}
_BY_TARGET = {goal.target: goal for goal in GOALS.values() if goal.verb in ("collect", "eat", "defeat")}


def goal_of(rule: Rule) -> Goal | None:
    """Return the achievement that a rule aims at, if any."""
    if rule.verb == PRESS:
        return _BY_TARGET.get(rule.what)
    if rule.verb in (PLACE, MAKE):
        return GOALS.get(f"{rule.verb}_{rule.what.replace(' ', '_')}")
    return GOALS["wake_up"]


def within_reach(inventory: dict[str, int], knows: Callable[[str], bool]) -> list[str]:
    """Return the achievements whose requirements the player has and knows."""
    found = []
    for name, goal in GOALS.items():
        if any(inventory[item.replace(" ", "_")] < count for item, count in goal.needs.items()):
            continue
        if goal.verb == "sleep":
            if inventory["energy"] < MAX_ENERGY:
                found.append(name)
        elif all(knows(what) for what in (*goal.near, *([goal.target] if goal.target else []))):
            found.append(name)
    return found


def missing(rule: Rule, inventory: dict[str, int], is_beside: Callable[[tuple[str, ...]], bool]) -> str:
    """Return why presses for a rule had no effect."""
    goal = goal_of(rule)
    if goal is None:
        return f"pressing {rule.what} does nothing"
    lacks = [
        f"{count} {item} (had {inventory[item.replace(' ', '_')]})"
        for item, count in goal.needs.items()
        if inventory[item.replace(" ", "_")] < count
    ]
    if lacks:
        return f"it takes {' and '.join(lacks)}"
    if goal.near and not is_beside(goal.near):
        return f"it must be done near the {' and the '.join(goal.near)}"
    if goal.verb == "sleep":
        return "the player is not tired"
    if goal.verb == "place" and goal.target:
        return f"it must be placed on {goal.target}"
    return "it takes more tries" if goal.is_chance or goal.verb in ("eat", "defeat") else "there was no room for it"
