"""How the offline reflector improves the rules of a Crafter prompt: by plain edits that the feedback asks for.

It adds a rule for what was within reach and not asked for, repairs, re-numbers and moves rules that were blocked,
deletes rules that never do anything, and adds rules of survival after deaths. It reads feedback on train worlds and
nothing else: it has no map, no recipe of its own, and no list of what there is to reach.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from crafter_container.rules import MAKE, PLACE, PRESS, SLEEP, Condition, Prompt, Rule, UnreadableError, read_prompt
from shared.brief import MERGE, Brief, Proposal

Json = dict[str, Any]
Rules = list[Rule]

# A stock that is still too small grows by this much; a share of the steps above the limit is too much for one rule.
MORE = 2
GREEDY_SHARE = 0.3
TRIES = 20


@dataclass(frozen=True)
class Edit:
    """One change: how many rows ask for it, the rules that it takes out and puts in, and where."""

    weight: float
    idea: str
    new: Rule | None = None
    old: Rule | None = None
    to_front: bool = False


def propose(brief: Brief) -> list[Proposal]:
    """Return as many prompts as are asked for, each with other edits."""
    name = brief.components[0]
    if brief.operation == MERGE:
        return [_merged(brief, name)]
    prompt = read_prompt(brief.parent[name])
    stories = [_story(row.details) for row in brief.rows if row.details.get("rules")]
    edits = find_edits(prompt, stories)
    fresh = [edit for edit in edits if not (edit.new and edit.new.text() in brief.tried)]
    seed = hashlib.sha256(f"{brief.parent[name]}{brief.tried}{len(brief.rows)}".encode()).digest()
    draw = random.Random(seed)  # noqa: S311 (nothing secret is drawn)
    proposals: list[Proposal] = []
    for place in range(brief.proposal_count * 4):
        chosen = _chosen(fresh or edits, place, draw)
        text = _write(apply(list(prompt.rules), chosen))
        if text and text != brief.parent[name] and all(text != made.fields[name] for made in proposals):
            proposals.append(Proposal({name: text}, " ".join(edit.idea for edit in chosen)))
        if len(proposals) == brief.proposal_count:
            break
    return proposals


def _story(told: Json) -> Json:
    """Return the details of an episode with all their entries: a brief leaves out those that are empty."""
    rule: Json = {"steps": 0, "held_steps": 0, "worked": 0, "reached": [], "blocked": {}}
    goal: Json = {"rule": None, "needs": {}, "near": [], "target": "", "is_chance": False}
    empty: Json = {"death": None, "within_reach": [], "short_of": []}
    return {
        **empty,
        **told,
        "rules": [rule | given for given in told["rules"]],
        "within_reach": [goal | given for given in told.get("within_reach") or []],
    }


def find_edits(prompt: Prompt, stories: list[Json]) -> list[Edit]:
    """Return the changes that episodes ask for, most wanted first."""
    edits = [
        *_survival(prompt, stories),
        *_additions(prompt, stories),
        *_repairs(prompt, stories),
        *_stocks(prompt, stories),
        *_order(prompt, stories),
    ]
    return sorted(edits, key=lambda edit: -edit.weight)


def apply(rules: Rules, edits: list[Edit]) -> Rules:
    """Return the rules after some changes. A rule that two changes speak of is changed by the first alone."""
    for edit in edits:
        if edit.old is not None:
            if edit.old not in rules:
                continue
            at = rules.index(edit.old)
            rules.remove(edit.old)
            if edit.new is not None and edit.new not in rules:
                rules.insert(0 if edit.to_front else at, edit.new)
        elif edit.new is not None and edit.new not in rules:
            rules.insert(0 if edit.to_front else _after_survival(rules), edit.new)
    return rules


def _chosen(edits: list[Edit], place: int, draw: random.Random) -> list[Edit]:
    """Return the edits of a proposal: the first takes most of what is wanted, each other one a part of it."""
    if place == 0:
        return edits[:6]
    return [edit for edit in edits if draw.random() < 0.5][:5]


def _additions(prompt: Prompt, stories: list[Json]) -> list[Edit]:
    """Ask for what was within reach."""
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
            found.append(Edit(3 * count / len(stories), f"{_said(name)} was within reach.", rule))
    return found


def _rule_for(goal: Json) -> Rule | None:
    """Return a rule that asks once for what a goal takes."""
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
    """Write into a rule what it was blocked for, and take out a rule that never does anything."""
    found = []
    for number, rule in enumerate(prompt.rules, start=1):
        logs = [log for story in stories for log in story["rules"] if log["rule"] == number]
        reasons: Counter[str] = Counter(reason for log in logs for reason in log["blocked"])
        for reason, count in reasons.items():
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


def _stocks(prompt: Prompt, stories: list[Json]) -> list[Edit]:
    """Collect more of what there was too little of, and less of what takes too many steps."""
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
            if rule.is_once:  # The first one is worth its place; the stock comes after all that is asked for once.
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
    try:
        kept = [one for one in rule.conditions if not (one.kind == "below" and one.what == item)]
        return replace(rule, conditions=(*kept, Condition("below", item, number)))
    except UnreadableError:
        return rule


def _order(prompt: Prompt, stories: list[Json]) -> list[Edit]:
    """Move a rule to the front that did not get done what was within reach."""
    late: Counter[int] = Counter(
        goal["rule"] for story in stories for goal in story["within_reach"] if goal["rule"] is not None
    )
    found = []
    for number, count in late.items():
        rule = prompt.rules[number - 1]
        if number > 1 and rule.is_once:
            found.append(Edit(count / len(stories), f"{rule.text()!r} came too late.", rule, rule, to_front=True))
    return found


def _survival(prompt: Prompt, stories: list[Json]) -> list[Edit]:
    """Answer deaths."""
    causes: Counter[str] = Counter(story["death"] for story in stories if story["death"])
    found = []
    for cause, count in causes.items():
        for new, old in _answers(prompt, cause):
            weight = 2.5 * count / len(stories)
            found.append(Edit(weight, f"{count} of {len(stories)} died: {cause}.", new, old, to_front=old is None))
    return found


def _answers(prompt: Prompt, cause: str) -> list[tuple[Rule, Rule | None]]:
    """Return rules against a cause of death, each with the rule that it takes the place of."""
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


def _after_survival(rules: Rules) -> int:
    """Return the place behind the leading rules that are not asked for once."""
    for place, rule in enumerate(rules):
        is_survival = rule.conditions and (rule.conditions[0].kind == "near" or rule.conditions[0].what in _VITALS)
        if rule.is_once or not is_survival:
            return place
    return len(rules)


_VITALS = ("health", "food", "drink", "energy")


def _is_about(condition: Condition, need: Condition) -> bool:
    return condition.kind == need.kind and condition.what == need.what


def _merged(brief: Brief, name: str) -> Proposal:
    """Lay the rules of all parents together: those of the base, and those for what it does not ask for."""
    rules = list(read_prompt(brief.base[name]).rules)
    asked = {(rule.verb, rule.what) for rule in rules}
    for parent in brief.parents:
        for rule in read_prompt(parent.get(name, "")).rules:
            if (rule.verb, rule.what) not in asked:
                rules.insert(_after_survival(rules), rule)
                asked.add((rule.verb, rule.what))
    return Proposal({name: _write(rules)}, "Rules of both parents, for what one of them does not ask for.")


def _write(rules: Rules) -> str:
    return "\n".join(f"{number}. {rule.text()}" for number, rule in enumerate(rules, start=1))


def _said(name: str) -> str:
    return name.replace("_", " ")
