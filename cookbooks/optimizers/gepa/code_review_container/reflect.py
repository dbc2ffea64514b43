"""The strategy of the offline reflector: improves a checklist by counting in the feedback on reviews.

A missed defect becomes a line "Flag ...", in the words of the feedback. If that line exists already and the defect is
still missed, other words are tried. Frequent false alarms become a line "Do not report ...".
"""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass

from shared.brief import MERGE, Brief, Proposal, Row

FORBID = "Do not report"

_CODE = r"line \d+(?: `(?P<code>.*?)`)?"
_DEFECT = r"(?P<what>.+?) \((?P<why>[^()]*)\)\."
_MISSED = re.compile(rf"^Missed {_CODE}: {_DEFECT}$", re.MULTILINE)
_FOUND = re.compile(rf"^Found {_CODE}: {_DEFECT} Said: (?P<said>.*)$", re.MULTILINE)
_ALARM = re.compile(rf"^False alarm at {_CODE}\. Said: (?P<said>.*)$", re.MULTILINE)
_SAID = re.compile(r'"([^"]*)"(?: because of "([^"]*)")?')


@dataclass(frozen=True)
class Defect:
    """A defect as the feedback describes it."""

    what: str
    why: str
    code: str


@dataclass(frozen=True)
class Remark:
    """A comment of the review, and the line of the prompt that caused it."""

    message: str
    because: str


@dataclass(frozen=True)
class Evidence:
    """All information in the feedback on some rows."""

    missed: tuple[Defect, ...]
    found: tuple[tuple[Defect, tuple[Remark, ...]], ...]
    alarms: tuple[Remark, ...]


def propose(brief: Brief) -> list[Proposal]:
    """Return at most the requested number of proposals, none equal to a parent."""
    field = brief.components[0]
    parent = brief.base[field].splitlines()
    evidence = read_evidence(brief.rows)
    silent = forbid_false_alarms(parent, evidence)
    ideas = [
        ("flag all that was missed, and be quiet about false alarms", learn(silent, evidence, brief.tried)),
        ("allow again what was missed", remove_prohibitions(parent, evidence)),
        ("flag what was missed most", learn(parent, evidence, brief.tried, most=2)),
        ("be quiet about false alarms", silent),
        ("flag all that was missed", learn(parent, evidence, brief.tried)),
        *(
            (f"do without: {line}", [known for known in parent if known != line])
            for line in lines_without_findings(parent, evidence)
        ),
    ]
    if brief.operation == MERGE:
        both = [line for other in brief.parents for line in other[field].splitlines()]
        ideas.insert(0, ("the lines of both parents", list(dict.fromkeys([*parent, *both]))))
    known = {frozenset(texts[field].splitlines()) for texts in [brief.base, *brief.parents]}
    known |= {frozenset(parent) - set(attempt.removed) | set(attempt.added) for attempt in brief.rejected}
    proposals = []
    for idea, lines in ideas:
        if frozenset(lines) not in known:
            known.add(frozenset(lines))
            proposals.append(Proposal({field: "\n".join(lines)}, idea))
    return proposals[: brief.proposal_count]


def read_evidence(rows: Iterable[Row]) -> Evidence:
    """Parse the feedback on rows."""
    missed, found, alarms = [], [], []
    for text in (text for row in rows for text in row.feedback):
        missed += [Defect(match["what"], match["why"], match["code"] or "") for match in _MISSED.finditer(text)]
        found += [
            (Defect(match["what"], match["why"], match["code"] or ""), remarks(match["said"]))
            for match in _FOUND.finditer(text)
        ]
        alarms += [remark for match in _ALARM.finditer(text) for remark in remarks(match["said"])]
    return Evidence(tuple(missed), tuple(found), tuple(alarms))


def remarks(said: str) -> tuple[Remark, ...]:
    """Parse the comments of a review on a line."""
    return tuple(Remark(message, because) for message, because in _SAID.findall(said))


def learn(lines: list[str], evidence: Evidence, tried: Set[str], most: int = 1000) -> list[str]:
    """Add a line for each kind of missed defect, the most frequent first, or reword a line that did not help."""
    lines = list(lines)
    found = {defect.what for defect, _ in evidence.found}
    for what in by_count(defect.what for defect in evidence.missed)[:most]:
        known = wordings([defect for defect in evidence.missed if defect.what == what])
        used = [line for line in lines if line in known]
        fresh = [line for line in known if line not in used]
        # Wordings of rejected prompts come last: they may have been right in combination with wrong lines.
        fresh.sort(key=lambda line: line in tried)
        if not fresh:
            continue
        if used and what not in found:
            lines[lines.index(used[-1])] = fresh[0]
        else:
            lines.append(fresh[0])
    return lines


def remove_prohibitions(lines: list[str], evidence: Evidence) -> list[str]:
    """Remove lines that forbid reports and share a significant word with a missed defect."""
    missed = {word for defect in evidence.missed for word in long_words(f"{defect.what} {defect.why}")}
    return [line for line in lines if not (line.startswith(FORBID) and missed & long_words(line))]


def wordings(group: list[Defect]) -> list[str]:
    """Return wordings that ask for a kind of defect, the plainest first."""
    what, why = group[0].what, group[0].why
    names = telling_names(defect.code for defect in group)
    ways = [f"Flag {what}.", f"Flag {what}: {why}.", f"Flag code where {why}."]
    if names:
        ways += [f"Flag {what}, as with {names}.", f"Flag {names}: {why}."]
    return ways


def telling_names(codes: Iterable[str]) -> str:
    """Return at most two functions, modules or keywords that occur in most of the given code lines."""
    keywords = "|".join(keyword.kwlist)
    names = [set(re.findall(rf"\b[a-z]\w+(?=[.(=])|\b(?:{keywords})\b", code)) for code in codes]
    return " and ".join(by_count(name for found in names for name in found)[:2])


def by_count(names: Iterable[str]) -> list[str]:
    """Return names, the most frequent first."""
    return [name for name, _ in sorted(Counter(names).items(), key=lambda item: (-item[1], item[0]))]


def long_words(text: str) -> set[str]:
    """Return the words of a text that are long enough to be significant."""
    return set(re.findall(r"[a-z]{5,}", text.lower()))


def forbid_false_alarms(lines: list[str], evidence: Evidence) -> list[str]:
    """Forbid reports that were false more often than right; remove a line that caused only such reports."""
    lines = list(lines)
    right = [remark for _, spot in evidence.found for remark in spot]
    helpful = {remark.because for remark in right}
    groups: dict[str, list[Remark]] = {}
    for remark in evidence.alarms:
        groups.setdefault(shape(remark.message), []).append(remark)
    for key, group in sorted(groups.items()):
        if len(group) <= sum(shape(remark.message) == key for remark in right):
            continue
        line = f"{FORBID} {in_words([remark.message for remark in group])}."
        if line not in lines:
            lines.append(line)
        else:
            asked = {remark.because for remark in group} - helpful
            lines = [known for known in lines if known not in asked]
    return lines


def lines_without_findings(lines: list[str], evidence: Evidence) -> list[str]:
    """Return the lines without any finding, newest first; the first line of a prompt states its purpose and is kept."""
    helpful = {remark.because for _, spot in evidence.found for remark in spot}
    return [line for line in reversed(lines[1:]) if line not in helpful]


def shape(message: str) -> str:
    """Return a message without its quoted names."""
    return re.sub(r"`[^`]*`|\d+", "...", message)


def in_words(messages: list[str]) -> str:
    """Return what some messages have in common, in ordinary words."""
    same = messages[0] if len(set(messages)) == 1 else re.sub(r" *`[^`]*`", "", messages[0])
    words = same.replace("`", "").strip(" .")
    return words[:1].lower() + words[1:]
