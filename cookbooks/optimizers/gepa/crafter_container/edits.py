"""Finds the edits that the feedback on some episodes suggests.

It reads feedback on episodes in train worlds. It has no map, no recipes, and no list of achievements. Its prior
knowledge is a remedy for each cause of death (cows against hunger, water against thirst, sleep against tiredness, a
fight against attackers), and initial numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from crafter_container.rules import MAKE, PLACE, PRESS, SLEEP, Condition, Prompt, Rule

Json = dict[str, Any]

# The increment of an insufficient stock; and the share of steps above which one rule takes too many.
MORE = 2
GREEDY_SHARE = 0.3
TRIES = 20
# The weight of an edit without supporting feedback.
IDLE = 0.05


@dataclass(frozen=True)
class Edit:
    """One change: how many rows support it, the rules that it removes and adds, and where."""

    weight: float
    idea: str
    new: Rule | None = None
    old: Rule | None = None
    to_front: bool = False


def find_edits(prompt: Prompt, stories: list[Json]) -> list[Edit]:
    """Return the changes that episodes suggest, best supported first."""
    edits = [
        *_survival(prompt, stories),
        *_additions(prompt, stories),
        *_repairs(prompt, stories),
        *_stocks(prompt, stories),
        *_order(prompt, stories),
        *_variations(prompt),
    ]
    return sorted(edits, key=lambda edit: -edit.weight)


def _additions(prompt: Prompt, stories: list[Json]) -> list[Edit]:
    """Add rules for achievements that were within reach."""
    wanted: Counter[str] = Counter()
    goals: dict[str, Json] = {}
    for story in stories:
        for goal in story["within_reach"]:
            if goal["rule"] is None:
                wanted[goal["achievement"]] += 1
                goals[goal["achievement"]] = goal
    found = []
    for name, count in wanted.items():
        rule = _rule_for(goals[name])
        if rule is not None and rule not in prompt.rules:
            found.append(Edit(3 * count / len(stories), f"{_in_words(name)} was within reach.", rule))
    return found


def _rule_for(goal: Json) -> Rule | None:
    """Return a rule that requests the action of a goal once."""
    conditions = tuple(Condition("at_least", item, count) for item, count in goal["needs"].items())
    what = goal["achievement"].partition("_")[2].replace("_", " ")
    near, target = tuple(goal["near"]), goal["target"]
    if goal["verb"] == "sleep":
        return Rule(SLEEP, "", (Condition("below", "energy", 8),), is_once=True)
    if goal["verb"] == "place":
        return Rule(PLACE, what, conditions, near, on=target, is_once=True)
    if goal["verb"] == "make":
        return Rule(MAKE, what, conditions, near, is_once=True)
    gain = what if goal["verb"] == "collect" and what != target and target != "water" else ""
    return Rule(PRESS, target, conditions, gain=gain, is_once=True, tries=TRIES if goal["is_chance"] else None)


def _repairs(prompt: Prompt, stories: list[Json]) -> list[Edit]:
    """Add the missing condition to a blocked rule, and remove a rule that never had an effect."""
    found: list[Edit] = []
    for number, rule in enumerate(prompt.rules, start=1):
        logs = [log for story in stories for log in story["rules"] if log["rule"] == number]
        reasons: Counter[str] = Counter(reason for log in logs for reason in log["blocked"])
        for reason, count in reasons.items():
            if apart := re.match(r"no way to (\w+) and (\w+)$", reason):
                found += _together(prompt, apart[1], apart[2], 2 * count / len(stories))
            repaired = _repaired(rule, reason)
            if repaired is not None and repaired != rule:
                found.append(Edit(2 * count / len(stories), f"A rule was blocked: {reason}.", repaired, rule))
        spent = sum(log["steps"] for log in logs)
        if spent and not any(log["worked"] for log in logs) and len(logs) > 2:
            found.append(Edit(0.5, f"{rule.text()!r} took {spent} steps without success.", None, rule))
    return found


def _repaired(rule: Rule, reason: str) -> Rule | None:
    if takes := re.match(r"it takes (.+)$", reason):
        lacks = re.findall(r"(\d+) ([a-z ]+?) \(had", takes[1])
        if lacks:
            needs = [Condition("at_least", item, int(count)) for count, item in lacks]
            kept = [one for one in rule.conditions if not any(_is_about(one, need) for need in needs)]
            return replace(rule, conditions=(*kept, *needs))
        return replace(rule, tries=(rule.tries or TRIES // 2) * 2) if (rule.tries or 0) < 80 else None
    if place := re.match(r"it must be done near the (.+)$", reason):
        return replace(rule, near=tuple(place[1].split(" and the ")))
    if ground := re.match(r"it must be placed on (\w+)$", reason):
        return replace(rule, on=ground[1])
    return None


def _together(prompt: Prompt, first: str, second: str, weight: float) -> list[Edit]:
    """Place the second of two things near the first, if no position is beside both."""
    return [
        Edit(weight, f"No place is beside {first} and {second}.", replace(rule, near=(first,)), rule)
        for rule in prompt.rules
        if rule.verb == PLACE and rule.what == second and not rule.near
    ]


def _stocks(prompt: Prompt, stories: list[Json]) -> list[Edit]:
    """Collect more of what was insufficient, and less of what takes too many steps."""
    wanted: Counter[str] = Counter()
    most: dict[str, int] = {}
    for story in stories:
        for item in {item["item"]: item for item in story["short_of"]}.values():
            wanted[item["item"]] += 1
        for item in story["short_of"]:
            most[item["item"]] = max(most.get(item["item"], 0), item["needs"])
    found = []
    for number, rule in enumerate(prompt.rules, start=1):
        item = rule.gain or rule.what
        limit = next((one for one in rule.conditions if one.kind == "below" and one.what == item), None)
        if rule.verb != PRESS or rule.tries is not None:
            continue
        if item in wanted and (rule.is_once or limit is not None):
            goal = min(9, (limit.number if limit else 0) + MORE if limit else most[item])
            stocked = _with_limit(replace(rule, is_once=False), item, goal)
            if rule.is_once:  # The first item keeps its position; the stock comes after all one-time rules.
                found.append(Edit(2 * wanted[item] / len(stories), f"There was too little {item}.", stocked, rule))
            elif stocked != rule:
                found.append(Edit(wanted[item] / len(stories), f"There was too little {item}.", stocked, rule))
        share = sum(log["steps"] for story in stories for log in story["rules"] if log["rule"] == number)
        share /= max(1, sum(story["steps"] for story in stories))
        if limit is None and not rule.is_once and not rule.conditions and share > GREEDY_SHARE:
            limited = _with_limit(rule, item, 5)
            found.append(Edit(2 * share, f"{rule.text()!r} took {share:.0%} of all steps.", limited, rule))
    return found


def _with_limit(rule: Rule, item: str, number: int) -> Rule:
    kept = [one for one in rule.conditions if not (one.kind == "below" and one.what == item)]
    return replace(rule, conditions=(*kept, Condition("below", item, number)))


def _order(prompt: Prompt, stories: list[Json]) -> list[Edit]:
    """Move a rule to the front if its achievement was within reach and not reached."""
    late: Counter[int] = Counter(
        goal["rule"] for story in stories for goal in story["within_reach"] if goal["rule"] is not None
    )
    found = []
    for number, count in late.items():
        # With the llm policy, rules are those of the model, and the prompt may have fewer.
        rule = prompt.rules[number - 1] if number <= len(prompt.rules) else None
        if rule is not None and rule.is_once and number > 1:
            found.append(Edit(count / len(stories), f"{rule.text()!r} came too late.", rule, rule, to_front=True))
    return found


def _variations(prompt: Prompt) -> list[Edit]:
    """Try other numbers and another order, if there is no better idea."""
    found = []
    for place, rule in enumerate(prompt.rules):
        for at, condition in enumerate(rule.conditions):
            for number in (condition.number - 1, condition.number + 1):
                if condition.kind != "at_least" and 2 <= number <= 9:
                    other = (*rule.conditions[:at], replace(condition, number=number), *rule.conditions[at + 1 :])
                    found.append(Edit(IDLE, "Another number.", replace(rule, conditions=other), rule))
        if place > 0:
            found.append(Edit(IDLE, "Another order.", rule, rule, to_front=True))
    return found


def _survival(prompt: Prompt, stories: list[Json]) -> list[Edit]:
    """Add rules against the causes of death."""
    causes: Counter[str] = Counter(story["death"] for story in stories if story["death"])
    found = []
    for cause, count in causes.items():
        for new, old in _answers(prompt, cause):
            weight = 2.5 * count / len(stories)
            found.append(Edit(weight, f"{count} of {len(stories)} died: {cause}.", new, old, to_front=old is None))
    return found


def _answers(prompt: Prompt, cause: str) -> list[tuple[Rule, Rule | None]]:
    """Return rules against a cause of death, each with the rule that it replaces."""
    answers: list[tuple[Rule, Rule | None]] = []
    if "asleep" in cause:
        guard = Condition("not_near", "zombie", 8)
        answers += [
            (replace(rule, conditions=(*rule.conditions, guard)), rule)
            for rule in prompt.rules
            if rule.verb == SLEEP and guard not in rule.conditions
        ]
    for word, enemy in (("zombie", "zombie"), ("arrow", "skeleton"), ("attacker", "zombie")):
        if word in cause:
            answers += _nearer(prompt, enemy)
    for vital, rule in (
        ("food", Rule(PRESS, "cow")),
        ("drink", Rule(PRESS, "water")),
        ("energy", Rule(SLEEP, "")),
    ):
        if f"no {vital}" in cause:
            answers += _sooner(prompt, vital, rule)
    return answers


def _nearer(prompt: Prompt, enemy: str) -> list[tuple[Rule, Rule | None]]:
    old = next((r for r in prompt.rules if r.what == enemy and r.conditions and r.conditions[0].kind == "near"), None)
    steps = old.conditions[0].number + 1 if old else 2
    if steps > 6:
        return []
    return [(Rule(PRESS, enemy, (Condition("near", enemy, steps),)), old)]


def _sooner(prompt: Prompt, vital: str, rule: Rule) -> list[tuple[Rule, Rule | None]]:
    olds = [
        old
        for old in prompt.rules
        if old.what == rule.what and any(one.what == vital and one.kind == "below" for one in old.conditions)
    ]
    old = next((old for old in olds if not old.is_once), None)
    number = next(one.number for one in old.conditions if one.what == vital) + 1 if old else 4
    if number > 8:
        return []
    return [(replace(rule, conditions=(Condition("below", vital, number),)), old)]


def _is_about(condition: Condition, need: Condition) -> bool:
    return condition.kind == need.kind and condition.what == need.what


def _in_words(name: str) -> str:
    return name.replace("_", " ")
