"""Tokenization for this example: lower case, without stop words, reduced to stems."""

from __future__ import annotations

import re

QUEUES = ("billing", "delivery", "returns", "account", "technical", "other")

_COMMON = """
    a about after again all also am an and any anything are as at be because been before but by came can cannot come
    comes could did do does else ever every for from get gets give gives go goes got had has have how i if in
    into is it its just keep keeps like many me much my need never no nobody none not now of off on one only or our out
    over please question rather said say says send sent should since so some soon still such than thank that the their
    them then there these they this those through ticket to too turn two us use very want wanted was we well were what
    when whenever where which who why will with within without would yet you your yours"""
COMMON = frozenset(_COMMON.split())

_ENDINGS = ("ations", "ation", "ings", "ing", "ies", "ed", "es", "s", "e", "y")


def words(text: str) -> list[str]:
    """Return the words of a text without stop words, in order and as written."""
    return [word for word in re.findall(r"[a-z][a-z-]*[a-z]", text.lower()) if word not in COMMON]


def stem(word: str) -> str:
    """Return the common stem of a word's forms: charged, charges and charge are equal."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word


def stems(text: str) -> set[str]:
    """Return the stems of a text's words without stop words."""
    return {stem(word) for word in words(text)}


def guidance(prompt: str) -> dict[str, list[str]]:
    """Return the entries of lines like `- billing: invoice, payment`, by queue, in order."""
    found: dict[str, list[str]] = {}
    for line in prompt.splitlines():
        match = re.match(r"\s*[-*]\s*[`*]*(\w+)[`*]*\s*:[`*]*(.*)", line)
        if match and match[1].lower() in QUEUES:
            entries = [entry.strip(" .") for entry in re.split(r"[,;]", match[2])]
            found.setdefault(match[1].lower(), []).extend(entry for entry in entries if entry)
    return found
