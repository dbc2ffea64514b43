"""The llm policy: a model that has read the prompt repeatedly writes rules for the next part of the episode.

The model gets the prompt, the player's observation and inventory, and the outcome of its last rules. Its answer is a
short list of rules in the same controlled English, which the same motor code executes. The number of calls per episode
is bounded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from crafter_container.episodes import report
from crafter_container.motor import STRIDE, Body, place_of
from crafter_container.policy import Player
from crafter_container.rules import read_prompt
from crafter_container.world import VITALS

Json = dict[str, Any]
Ask = Callable[[Sequence[Mapping[str, str]]], Awaitable[tuple[str, Mapping[str, Any]]]]

CALLS = 8
MOST_CALLS = 50
LANGUAGE = """\
You steer a player in the game Crafter. Answer with an ordered list of rules, one on each line and nothing else. At
every step the first rule whose conditions hold and that can be followed has its turn; without one, the player explores.
Forms of a rule:
- If <condition> and <condition>, <what to do>.
Conditions: you have 2 wood; you have no wood sword; you have fewer than 5 stone; food is below 4 (also health, drink,
energy); a zombie is within 3 steps; no zombie is within 8 steps; it is dark.
What to do: collect wood from a tree; collect stone; drink water; eat a cow; fight a zombie; collect sapling from grass;
place a table; place a plant on grass; make a wood pickaxe near the table; sleep. Add `once` to do it one time only, and
`trying up to 20 times` where luck is needed."""


def observation(player: Player) -> str:
    """Return the player's observation and inventory as text."""
    game, body = player.game, player.body
    has = game.inventory
    items = [f"{count} {name.replace('_', ' ')}" for name, count in has.items() if count and name not in VITALS]
    reached = [name.replace("_", " ") for name in player.reached]
    return "\n".join(
        [
            f"Step {game.step_count}. It is {'light' if game.daylight >= 0.5 else 'dark'}.",
            ", ".join(f"{name} {has[name]} of 9" for name in VITALS) + ".",
            f"You have {', '.join(items) if items else 'nothing'}.",
            f"Known places: {_places(body) or 'none'}.",
            f"Achievements so far: {', '.join(reached) if reached else 'none'}.",
        ]
    )


async def play(world: bytes, prompt: str, steps: int, calls: int, ask: Ask) -> Json:
    """Play an episode with a model, and return its report, with the conversation and the tokens."""
    player = Player(world, read_prompt(""))
    exchange: list[Json] = []
    usage: Counter[str] = Counter()
    told_by: Counter[str] = Counter()
    system = {"role": "system", "content": f"{LANGUAGE}\n\nYour guide:\n{prompt}"}
    for call in range(calls):
        if player.game.is_dead:
            break
        asked = observation(player)
        if call:
            asked += f"\nThe last rules and what came of them:\n{_outcome(player)}"
        text, used = await ask([system, {"role": "user", "content": asked}])
        usage.update(used)
        told_by.update(used.keys())
        rules = read_prompt(text)
        exchange.append({"type": "llm_call", "observation": asked, "answer": text, "rules": len(rules.rules)})
        if rules.rules:
            player.change(rules)
        await asyncio.to_thread(player.play, steps * (call + 1) // calls)
    told = report(player.episode(), steps)
    # If one call reports no number, the total of the episode is unknown.
    known = {name: amount for name, amount in usage.items() if told_by[name] == len(exchange)}
    return told | {"exchange": exchange, "usage": known}


def _places(body: Body) -> str:
    """Return the nearest object of each kind, with its distance and direction."""
    x, y = body.game.pos
    nearest: dict[str, tuple[int, int, int]] = {}
    found = [(name, place) for name, places in body.seen.items() for place in places if name not in ("path", "sand")]
    found += [(thing.kind, place_of(thing.pos)) for thing in body.things]
    for name, place in found:
        dx, dy = place // STRIDE - 1 - x, place % STRIDE - 1 - y
        steps = abs(dx) + abs(dy)
        if steps and (name not in nearest or steps < nearest[name][0]):
            nearest[name] = (steps, dx, dy)
    return ", ".join(f"{name} {steps} steps {_direction(dx, dy)}" for name, (steps, dx, dy) in sorted(nearest.items()))


def _direction(dx: int, dy: int) -> str:
    if abs(dx) > abs(dy):
        return "right" if dx > 0 else "left"
    return "down" if dy > 0 else "up"


def _outcome(player: Player) -> str:
    lines = []
    for log in player.logs:
        why = "; ".join(log.blocked)
        lines.append(
            f"- {log.line} Success {log.worked} times in {log.steps} steps.{f' Blocked: {why}.' if why else ''}"
        )
    return "\n".join(lines)
