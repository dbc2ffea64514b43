"""The strategy of the offline reflector: improves the rules of a Crafter prompt by edits that the feedback suggests.

It adds rules for achievements that were within reach and not requested; repairs, re-numbers and moves rules that were
blocked; deletes rules that never had an effect; and adds survival rules after deaths. It reads only feedback on train
worlds; `edits.py` describes its prior knowledge.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

from shared.brief import MERGE, Brief, Proposal

from crafter_container.edits import IDLE, Edit, find_edits
from crafter_container.rules import VITALS, Rule, read_prompt

Json = dict[str, Any]
Rules = list[Rule]

# The maximum number of edits in one proposal.
BOLD = 6
CAREFUL = 4


def propose(brief: Brief) -> list[Proposal]:
    """Return the requested number of prompts, each with other edits."""
    name = brief.components[0]
    if brief.operation == MERGE:
        return [_merged(brief, name)]
    prompt = read_prompt(brief.parent[name])
    stories = [_story(row.details) for row in brief.rows if row.details.get("steps")]
    edits = find_edits(prompt, stories)
    tried = {line.partition(". ")[2] or line for line in brief.tried} | brief.tried
    fresh = [edit for edit in edits if not (edit.new and edit.new != edit.old and edit.new.text() in tried)]
    wanted = [edit for edit in fresh if edit.weight > IDLE]
    shown = [row.row_id for row in brief.rows]
    seed = hashlib.sha256(f"{brief.parent[name]}{sorted(brief.tried)}{shown}".encode()).digest()
    draw = random.Random(seed)  # noqa: S311 (deterministic sampling, not a secret)
    proposals: list[Proposal] = []
    for place in range(brief.proposal_count * 4):
        # Many edits while that helps; fewer after a rejection.
        is_bold = place == 0 and not brief.rejected
        chosen = wanted[:BOLD] if is_bold and wanted else _drawn(fresh, draw)
        text = _write(apply(list(prompt.rules), chosen))
        if chosen and text != _write(list(prompt.rules)) and all(text != made.fields[name] for made in proposals):
            proposals.append(Proposal({name: text}, " ".join(edit.idea for edit in chosen)))
        if len(proposals) == brief.proposal_count:
            break
    return proposals


def _story(told: Json) -> Json:
    """Return the details of an episode with all keys: a brief leaves out empty ones."""
    rule: Json = {"steps": 0, "held_steps": 0, "worked": 0, "reached": [], "blocked": {}}
    goal: Json = {"rule": None, "needs": {}, "near": [], "target": "", "is_chance": False}
    empty: Json = {"death": None, "within_reach": [], "short_of": []}
    return {
        **empty,
        **told,
        "rules": [rule | given for given in told.get("rules") or []],
        "within_reach": [goal | given for given in told.get("within_reach") or []],
    }


def apply(rules: Rules, edits: list[Edit]) -> Rules:
    """Return the rules after some changes. If two changes concern the same rule, only the first applies."""
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


def _drawn(edits: list[Edit], draw: random.Random) -> list[Edit]:
    """Return a random sample of edits, weighted by their support."""
    lots = sorted(edits, key=lambda edit: draw.random() ** (1.0 / edit.weight), reverse=True)
    return lots[: draw.randint(1, CAREFUL)]


def _after_survival(rules: Rules) -> int:
    """Return the position behind the leading repeated rules."""
    for place, rule in enumerate(rules):
        is_survival = rule.conditions and (rule.conditions[0].kind == "near" or rule.conditions[0].what in VITALS)
        if rule.is_once or not is_survival:
            return place
    return len(rules)


def _merged(brief: Brief, name: str) -> Proposal:
    """Merge the rules of all parents: those of the base, and those for goals that the base lacks."""
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
