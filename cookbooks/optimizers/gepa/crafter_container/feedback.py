"""The scores of an episode and the feedback on it: as text for a reader, and as details for a program.

Everything is derived from the one episode that was played, without comparison to other worlds.
"""

from __future__ import annotations

from typing import Any

from crafter_container.policy import Episode, RuleLog, goals
from crafter_container.recipes import GOALS, Goal
from crafter_container.world import ACHIEVEMENTS, VITALS

Json = dict[str, Any]


def objectives(episode: Episode, steps: int) -> dict[str, float]:
    """Return the scores of an episode: the number of achievements, and the share of steps survived."""
    return {"achievements": float(len(episode.reached)), "survival": round(episode.steps / steps, 4)}


def details(episode: Episode) -> Json:
    """Return the details of an episode, for programs."""
    asked: dict[str, int] = {}
    for number, goal in goals(episode.prompt).items():
        asked.setdefault(goal.achievement, number)
    return {
        "achievements": episode.reached,
        "steps": episode.steps,
        "death": episode.cause_of_death,
        "rules": [_rule(number, log) for number, log in enumerate(episode.rules, start=1)],
        "unread": [{"line": line, "why": why} for line, why in episode.prompt.unread],
        "within_reach": [
            _goal(GOALS[name]) | {"since_step": step, "rule": asked.get(name)}
            for name, step in sorted(episode.chances.items(), key=lambda chance: chance[1])
            if name not in episode.reached
        ],
        "short_of": _shortages(episode),
        "explored_steps": episode.explored,
    }


def words(told: Json) -> str:
    """Return the details as text."""
    reached = told["achievements"]
    lines = [
        f"{len(reached)} of {len(ACHIEVEMENTS)} achievements in {told['steps']} steps"
        + (f": {', '.join(f'{_in_words(name)} (step {step})' for name, step in reached.items())}." if reached else ".")
    ]
    if told["death"]:
        lines.append(f"The player died at step {told['steps']}: {told['death']}.")
    lines += [_rule_words(rule) for rule in told["rules"]]
    lines += [f"Not understood: {item['line']!r}: {item['why']}." for item in told["unread"]]
    for goal in told["within_reach"]:
        asked = f"rule {goal['rule']} did not get it done" if goal["rule"] else "no rule asks for it"
        name = _in_words(goal["achievement"])
        lines.append(f"Within reach since step {goal['since_step']}, but {asked}: {name}{_takes(goal)}.")
    for item in told["short_of"]:
        lines.append(
            f"Short of {item['item']}: {_in_words(item['achievement'])} takes {item['needs']}, "
            f"and the player had {item['most']} at most."
        )
    return "\n".join(lines)


def _rule(number: int, log: RuleLog) -> Json:
    return {
        "rule": number,
        "line": log.line,
        "held_steps": log.held,
        "steps": log.steps,
        "worked": log.worked,
        "reached": log.reached,
        "blocked": dict(log.blocked.most_common(3)),
    }


def _rule_words(rule: Json) -> str:
    says = f"Rule {rule['rule']} ({rule['line']})"
    why = "; ".join(f"{reason} ({count} times)" for reason, count in rule["blocked"].items())
    blocked = f" Blocked: {why}." if why else ""
    if not rule["held_steps"]:
        return f"{says} never had its turn: its condition did not hold when no rule before it was at work."
    if not rule["steps"]:
        return f"{says} never did anything.{blocked}"
    reached = f", first of all {', '.join(map(_in_words, rule['reached']))}" if rule["reached"] else ""
    return f"{says} was at work for {rule['steps']} steps and had success {rule['worked']} times{reached}.{blocked}"


def _goal(goal: Goal) -> Json:
    return {
        "achievement": goal.achievement,
        "verb": goal.verb,
        "needs": goal.needs,
        "near": list(goal.near),
        "target": goal.target,
        "is_chance": goal.is_chance,
    }


def _takes(goal: Json) -> str:
    parts = [f"{count} {item}" for item, count in goal["needs"].items()]
    if goal["near"]:
        parts.append(f"to stand near the {' and the '.join(goal['near'])}")
    if goal["target"]:
        parts.append(f"to face {goal['target']}")
    if goal["is_chance"]:
        parts.append("some luck, so several tries")
    if goal["verb"] == "sleep":
        parts.append("to fall asleep when tired, and to wake up rested")
    return f"; it takes {' and '.join(parts)}" if parts else ""


def _shortages(episode: Episode) -> list[Json]:
    """Return items that were never sufficient at one time for an achievement that was not reached."""
    found = []
    for name, goal in GOALS.items():
        if name in episode.reached or name in episode.chances or not goal.needs:
            continue
        most = {item: episode.most.get(item.replace(" ", "_"), 0) for item in goal.needs}
        if all(most.values()):
            # Enough of each, but never of all at once: one rule spends what another one needs.
            lacking = [item for item, count in goal.needs.items() if most[item] < count] or list(goal.needs)
            found += [
                {"achievement": name, "item": item, "needs": goal.needs[item], "most": most[item]} for item in lacking
            ]
    return found


def _in_words(name: str) -> str:
    return name.replace("_", " ")


def final_state(episode: Episode) -> Json:
    """Return the player's final inventory."""
    return {name: count for name, count in episode.final.items() if count or name in VITALS}
