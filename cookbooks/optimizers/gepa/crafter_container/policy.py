"""The offline policy: it plays an episode by the rules of the prompt, and logs the outcome of each rule.

At every step it executes the first rule whose conditions hold and that is possible. If there is none, the player
explores. Only the prompt decides what to collect, make or place, when, and in which order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from crafter_container.motor import Blocked, Body
from crafter_container.recipes import Goal, goal_of, missing, within_reach
from crafter_container.rules import CREATURES, SLEEP, Condition, Prompt, Rule
from crafter_container.world import VITALS, Game

STEPS = 500
# The number of ineffective presses after which a rule is suspended, unless the rule sets its own.
TRIES = 3
TRIES_AT_CREATURES = 10


@dataclass
class RuleLog:
    """The outcome of one rule in an episode."""

    rule: Rule
    line: str
    steps: int = 0
    worked: int = 0
    reached: list[str] = field(default_factory=list)
    held: int = 0
    blocked: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    rests_with: tuple[int, ...] | None = None
    is_done: bool = False


@dataclass
class Episode:
    """The outcome of an episode."""

    steps: int
    reached: dict[str, int]
    rules: list[RuleLog]
    prompt: Prompt
    chances: dict[str, int]
    cause_of_death: str | None
    final: dict[str, int]
    most: dict[str, int]
    explored: int
    seen: set[str]


class Player:
    """Plays one episode in parts, with rules that may change in between."""

    def __init__(self, world: bytes, prompt: Prompt) -> None:
        """Enter a world."""
        self.game = Game(world)
        self.body = Body(self.game)
        self.prompt = prompt
        self.logs = [RuleLog(rule, line) for rule, line in zip(prompt.rules, prompt.lines, strict=True)]
        self.reached: dict[str, int] = {}
        self.chances: dict[str, int] = {}
        self.most: Counter[str] = Counter()
        self.explored = 0
        self.seen: set[str] = set()
        self._active: RuleLog | None = None
        self._harm: list[tuple[int, int, str]] = []
        self._counts = self.game.counts()

    def change(self, prompt: Prompt) -> None:
        """Continue with other rules; an unchanged rule keeps its log."""
        known = {log.rule: log for log in self.logs}
        self.prompt = prompt
        self.logs = [
            known.get(rule) or RuleLog(rule, line) for rule, line in zip(prompt.rules, prompt.lines, strict=True)
        ]

    def play(self, until: int) -> None:
        """Play until a step, or until death."""
        while self.game.step_count < until and not self.game.is_dead:
            self._step()

    def episode(self) -> Episode:
        """Return the outcome so far."""
        return Episode(
            steps=self.game.step_count,
            reached=self.reached,
            rules=self.logs,
            prompt=self.prompt,
            chances=self.chances,
            cause_of_death=self._cause() if self.game.is_dead else None,
            final=self.game.inventory,
            most=dict(self.most),
            explored=self.explored,
            seen=self.seen,
        )

    def _step(self) -> None:
        body, before = self.body, self.game.inventory
        self._update_reach(before)
        if self.game.is_asleep:
            action = "noop"
            if self._active:
                self._active.steps += 1
        else:
            action = self._choose(before)
        near = {thing.kind for thing in body.things if _steps(thing.pos, self.game.pos) <= 2}
        was_asleep = self.game.is_asleep
        self.game.act(action)
        body.look()
        counts = self.game.counts()
        done = [name for name, count in counts.items() if count > self._counts[name]]
        self._counts = counts
        self._log_effect(action, done, before)
        lost = before["health"] - self.game.inventory["health"]
        if lost > 0:
            self._harm.append((self.game.step_count, lost, self._attacker(lost, near, was_asleep)))

    def _choose(self, inventory: dict[str, int]) -> str:
        for log in self.logs:
            if log.is_done or not all(self._holds(condition, inventory) for condition in log.rule.conditions):
                continue
            log.held += 1
            if log.rests_with is not None:
                if log.rests_with == _state(log.rule, inventory):
                    continue
                log.rests_with = None
            try:
                action = self.body.follow(log.rule)
            except Blocked as reason:
                log.blocked[str(reason)] += 1
                continue
            log.steps += 1
            self._active = log
            return action
        self._active = None
        self.explored += 1
        return self.body.explore()

    def _log_effect(self, action: str, done: list[str], before: dict[str, int]) -> None:
        """Log the effect of an action, and suspend a rule whose presses have no effect."""
        log = self._active
        for name in done:
            if name not in self.reached:
                self.reached[name] = self.game.step_count
                if log:
                    log.reached.append(name)
        if log is None:
            return
        if done:
            log.worked += 1
            log.failed = 0
            log.is_done = log.rule.is_once
        elif not action.startswith(("move_", "noop")) and not self.game.is_asleep:
            log.failed += 1
            tries = log.rule.tries or (TRIES_AT_CREATURES if log.rule.what in CREATURES else TRIES)
            if log.failed >= tries:
                log.failed = 0
                log.rests_with = _state(log.rule, before)
                log.blocked[missing(log.rule, before, self.body.is_beside)] += 1

    def _holds(self, condition: Condition, inventory: dict[str, int]) -> bool:
        if condition.kind == "dark":
            return self.game.daylight < 0.5
        if condition.kind == "light":
            return self.game.daylight >= 0.5
        if condition.kind in ("near", "not_near"):
            return (self.body.distance(condition.what) <= condition.number) == (condition.kind == "near")
        has = inventory[condition.what.replace(" ", "_")]
        return has < condition.number if condition.kind == "below" else has >= condition.number

    def _update_reach(self, inventory: dict[str, int]) -> None:
        """Update the maximum inventory, and the achievements that are within reach."""
        for name, count in inventory.items():
            if count > self.most[name]:
                self.most[name] = count
        self.seen.update(thing.kind for thing in self.body.things)
        if self.game.step_count % 3 == 0:
            for name in within_reach(inventory, self.body.knows):
                if name not in self.reached:
                    self.chances.setdefault(name, self.game.step_count)

    def _attacker(self, lost: int, near: set[str], was_asleep: bool) -> str:
        if lost >= 2:
            who = "a zombie" if "zombie" in near else "an arrow" if {"arrow", "skeleton"} & near else "an attacker"
            return f"{who} while asleep" if was_asleep else who
        empty = [name for name in VITALS if not self.game.inventory[name] and name != "health"]
        return f"no {' and no '.join(empty)}" if empty else "an unknown cause"

    def _cause(self) -> str:
        """Return the cause of the greatest loss of health in the last steps."""
        weights: Counter[str] = Counter()
        for step, lost, culprit in self._harm:
            if step > self.game.step_count - 80:
                weights[culprit] += lost
        return weights.most_common(1)[0][0] if weights else "an unknown cause"


def play(world: bytes, prompt: Prompt, steps: int = STEPS) -> Episode:
    """Play one episode by the rules of a prompt."""
    player = Player(world, prompt)
    player.play(steps)
    return player.episode()


def goals(prompt: Prompt) -> dict[int, Goal]:
    """Return the goal of each rule, by its number from 1."""
    found = {number: goal_of(rule) for number, rule in enumerate(prompt.rules, start=1)}
    return {number: goal for number, goal in found.items() if goal is not None}


def _state(rule: Rule, inventory: dict[str, int]) -> tuple[int, ...]:
    """Return the state that must change before a suspended rule is tried again."""
    if rule.verb == SLEEP:
        return (inventory["energy"],)
    return tuple(count for name, count in inventory.items() if name not in VITALS)


def _steps(left: tuple[int, int], right: tuple[int, int]) -> int:
    return abs(left[0] - right[0]) + abs(left[1] - right[1])
