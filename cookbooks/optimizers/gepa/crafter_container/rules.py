"""The controlled English of the prompt, in which each line is a rule.

A rule says what to do, not how to walk there. Nothing is added to what it says: the words below are a vocabulary
without recipes, order or numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MATERIALS = ("water", "grass", "stone", "path", "sand", "tree", "lava", "coal", "iron", "diamond", "table", "furnace")
CREATURES = ("cow", "zombie", "skeleton", "ripe plant", "sapling plant")
TOOLS = tuple(f"{kind} {tool}" for kind in ("wood", "stone", "iron") for tool in ("pickaxe", "sword"))
ITEMS = ("sapling", "wood", "stone", "coal", "iron", "diamond", *TOOLS)
PLACEABLE = ("stone", "table", "furnace", "plant")
VITALS = ("health", "food", "drink", "energy")
NUMBERS = {"a": 1, "an": 1, "one": 1, "some": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "ten": 10}

PRESS, PLACE, MAKE, SLEEP = "press", "place", "make", "sleep"
_PRESS_VERBS = "collect|gather|get|chop|cut|mine|dig|drink|eat|fight|attack|defeat|hit|kill|take|harvest"
_SAME_WORD = {"plant": "ripe plant", "plants": "ripe plant", "log": "wood", "trees": "tree", "cattle": "cow"}


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition: an amount at least or below a number, something in sight or not, or darkness."""

    kind: str  # "at_least", "below", "near", "not_near", "dark" or "light"
    what: str = ""
    number: int = 0

    def text(self) -> str:
        """Return the condition as text."""
        if self.kind in ("dark", "light"):
            return f"it is {self.kind}"
        if self.kind in ("near", "not_near"):
            count = "a" if self.kind == "near" else "no"
            return f"{count} {self.what} is within {self.number} steps"
        if self.what in VITALS:
            return f"{self.what} is {'below' if self.kind == 'below' else 'at least'} {self.number}"
        if self.kind == "below":
            return f"you have no {self.what}" if self.number == 1 else f"you have fewer than {self.number} {self.what}"
        return f"you have {self.number} {self.what}"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: its conditions and its action."""

    verb: str
    what: str
    conditions: tuple[Condition, ...] = ()
    near: tuple[str, ...] = ()
    gain: str = ""
    on: str = ""
    is_once: bool = False
    tries: int | None = None

    def text(self) -> str:
        """Return the rule as a line of a prompt."""
        do = {PLACE: f"place a {self.what}", MAKE: f"make a {self.what}", SLEEP: "sleep"}.get(self.verb) or _press(self)
        if self.on:
            do += f" on {self.on}"
        if self.near:
            do += " near the " + " and the ".join(self.near)
        if self.is_once:
            do += " once"
        if self.tries is not None:
            do += f", trying up to {self.tries} times"
        if not self.conditions:
            return f"{do[0].upper()}{do[1:]}."
        return f"If {' and '.join(condition.text() for condition in self.conditions)}, {do}."


@dataclass(frozen=True, slots=True)
class Prompt:
    """The rules of a prompt in order, and the lines that are not rules, each with the reason."""

    rules: tuple[Rule, ...]
    lines: tuple[str, ...]
    unread: tuple[tuple[str, str], ...]


class UnreadableError(ValueError):
    """A line is not a rule; the text says why."""


def read_prompt(prompt: str) -> Prompt:
    """Parse all rules of a prompt. Titles, which end with a colon, and empty lines are skipped."""
    rules, lines, unread = [], [], []
    for raw in prompt.splitlines():
        line = re.sub(r"^\s*(?:[-*•]|\d+[.)])\s*", "", raw).strip()
        if not line or line.endswith(":") or line.startswith("#"):
            continue
        try:
            rules.append(read_rule(line))
            lines.append(line)
        except UnreadableError as problem:
            unread.append((line, str(problem)))
    return Prompt(tuple(rules), tuple(lines), tuple(unread))


def read_rule(line: str) -> Rule:
    """Parse one rule, or raise UnreadableError."""
    text = re.sub(r"[`*_]", " ", line.lower()).strip().rstrip(".!")
    text = re.sub(r"\s+", " ", text)
    condition_text, do = "", text
    leading = re.match(r"(?:if|when|while|once) (.+?)(?:, then |, | then )(.+)$", text)
    trailing = re.match(r"(.+?),? (?:if|when|while|until) (.+)$", text)
    if leading:
        condition_text, do = leading[1], leading[2]
    elif trailing:
        do, condition_text = trailing[1], trailing[2]
        if f" until {condition_text}" in text:
            return _read_do(do, (_until(condition_text),))
    parts = re.split(r",? and ", condition_text)
    return _read_do(do, tuple(_condition(part) for part in parts if part))


def _read_do(do: str, conditions: tuple[Condition, ...]) -> Rule:
    tries = re.search(r",? ?(?:trying |try )?up to (\d+) (?:times|tries)", do)
    if tries:
        do = do.replace(tries[0], "")
    is_once = bool(re.search(r"\b(?:only )?once\b", do))
    do = re.sub(r",? ?\b(?:only )?once\b", "", do).strip(" ,")
    near: tuple[str, ...] = ()
    place = re.search(r" (?:near|next to|beside|by|at) (.+)$", do)
    if place:
        near = tuple(_known(word, MATERIALS) for word in re.split(r",? and |, ", place[1]))
        do = do[: place.start()]
    common = {"conditions": conditions, "near": near, "is_once": is_once, "tries": int(tries[1]) if tries else None}
    if re.match(r"(?:go to )?sleep\b", do):
        return Rule(SLEEP, "", **common)  # type: ignore[arg-type]
    found = re.match(r"(?:make|craft|build) (.+)$", do)
    if found:
        what = _plain(found[1])
        if what in ("table", "furnace"):
            return Rule(PLACE, what, **common)  # type: ignore[arg-type]
        return Rule(MAKE, _known(found[1], TOOLS), **common)  # type: ignore[arg-type]
    found = re.match(r"(?:place|put down|put|plant) (.+?)(?: (?:on|in|into) (.+))?$", do)
    if found:
        what = "plant" if _plain(found[1]) in ("sapling", "plant") else _known(found[1], PLACEABLE)
        on = _known(found[2], MATERIALS) if found[2] else ""
        return Rule(PLACE, what, on=on, **common)  # type: ignore[arg-type]
    found = re.match(rf"(?:{_PRESS_VERBS}) (?:(.+?) from )?(.+)$", do)
    if found:
        what = _plain(found[2])
        what = _SAME_WORD.get(what, what)
        if what not in MATERIALS and what not in CREATURES:
            raise UnreadableError(f"{what!r} is nothing that can be faced; say from what, such as `from a tree`")
        return Rule(PRESS, what, gain=_plain(found[1] or ""), **common)  # type: ignore[arg-type]
    raise UnreadableError("no verb that the player knows: collect, drink, eat, fight, place, make or sleep")


def _condition(text: str) -> Condition:
    text = text.strip()
    if re.match(r"\d|fewer than |less than |at least |more than |(?:an?|no) (?:wood|stone|iron|sapling)\b", text):
        text = f"you have {text}"
    if found := re.match(r"it is (dark|night|light|day)", text):
        return Condition("dark" if found[1] in ("dark", "night") else "light")
    if found := re.match(r"(?:you have |your )?(health|food|drink|energy) (?:is )?(.+)$", text):
        return Condition(*_amount(found[2], found[1]))
    if found := re.match(
        r"(?:there is )?(an?|no) (.+?) (?:is )?(?:near(?:by)?|in sight|in view|within (\d+) steps?)$", text
    ):
        kind = "not_near" if found[1] == "no" else "near"
        return Condition(kind, _known(found[2], (*CREATURES, *MATERIALS)), int(found[3] or 9))
    if found := re.match(
        r"(?:you (?:do not|don't) have|you have no|you lack|you have not) (?:any |a |an )?(.+)$", text
    ):
        return Condition("below", _known(found[1], ITEMS), 1)
    if found := re.match(r"you have (fewer than|less than|under|at least|more than)? ?(\w+) (.+)$", text):
        number = NUMBERS.get(found[2], int(found[2]) if found[2].isdigit() else -1)
        if number >= 0:
            is_below = found[1] in ("fewer than", "less than", "under")
            more = 1 if found[1] == "more than" else 0
            return Condition("below" if is_below else "at_least", _known(found[3], (*ITEMS, *VITALS)), number + more)
    if found := re.match(r"you have (.+)$", text):
        return Condition("at_least", _known(found[1], ITEMS), 1)
    raise UnreadableError(f"the condition {text!r} is not understood")


def _amount(text: str, what: str) -> tuple[str, str, int]:
    found = re.match(
        r"(below|under|less than|at most|at least|above|more than|over)? ?(\d+)(?: or (less|more))?$", text
    )
    if not found:
        raise UnreadableError(f"{text!r} is no amount of {what}, such as `below 4`")
    number, word = int(found[2]), found[1] or ""
    if word == "at most" or found[3] == "less":
        return "below", what, number + 1
    if word in ("below", "under", "less than"):
        return "below", what, number
    return "at_least", what, number + (word in ("above", "more than", "over"))


def _until(text: str) -> Condition:
    goal = _condition(text)
    if goal.kind != "at_least":
        raise UnreadableError(f"`until {text}` names no amount to reach")
    return Condition("below", goal.what, goal.number)


def _plain(text: str) -> str:
    text = re.sub(r"^(?:the|an?|some|one|\d+|more|any|nearest) ", "", text.strip().replace("wooden", "wood"))
    return text[:-1] if text.endswith("s") and text not in ("grass",) else text


def _known(text: str, names: tuple[str, ...]) -> str:
    word = _plain(text)
    if word in names:
        return word
    if _SAME_WORD.get(word) in names:
        return _SAME_WORD[word]
    raise UnreadableError(f"{word!r} is none of: {', '.join(names)}")


def _press(rule: Rule) -> str:
    if rule.gain and rule.gain != rule.what:
        return f"collect {rule.gain} from {rule.what}"
    verb = {"water": "drink", "cow": "eat", "ripe plant": "eat", "zombie": "fight", "skeleton": "fight"}
    article = "a " if rule.what in CREATURES else ""
    return f"{verb.get(rule.what, 'collect')} {article}{rule.what}"
