"""The task of the benchmark and its proposer: what a text gets on a row, and the next text for what rows have said.

The stub container has the same task (`--train ROWS --needs NEEDS`): row `i` needs the rules `i`, `i + ROWS` and so on,
its reward is the share of them that the text names, and its feedback names one that is missing.
"""

from __future__ import annotations

import functools
import random
import re
import zlib
from collections.abc import Iterable
from typing import Any

FIELD = "instructions"
INITIAL = "Answer by the house rules: r0"


def rules_of(text: str) -> set[int]:
    """Return the rules that a text names."""
    return {int(rule) for rule in re.findall(r"\br(\d+)\b", text)}


def judge(rules: set[int], row: int, rows: int, needs: int) -> tuple[float, str]:
    """Return the reward and the feedback of a row."""
    missing = [rule for rule in range(row, rows * needs, rows) if rule not in rules]
    feedback = f"missing rule: r{missing[0]} in {FIELD}" if missing else "solved"
    return 1 - len(missing) / needs, feedback


@functools.cache
def filler(reply_bytes: int) -> str:
    """Return a text of random words, which compresses like prose."""
    dice = random.Random(7)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(dice.choices(letters, k=dice.randint(2, 9))) for _ in range(4_000)]
    return " ".join(dice.choices(words, k=reply_bytes // 3 + 1))[:reply_bytes]


def reply(reward: float, feedback: str, reply_bytes: int) -> dict[str, Any]:
    """Return the record of a rollout, as large as one of the container."""
    # A text of its own, as if it had been read from a reply: pickle writes the same object only once.
    content = f"{feedback} {filler(reply_bytes)}"
    return {
        "status": "completed",
        "reward_info": {"outcome_reward": reward, "event_rewards": [], "details": {}},
        "actionable_side_info": {"feedback": feedback},
        "trace": {"event_history": [{"type": "llm_request", "messages": [{"role": "user", "content": content}]}]},
    }


def next_line(feedback: Iterable[str]) -> str:
    """Return the line that the proposer adds to the parent: one of the rules that the rows miss."""
    heard = "\n".join(sorted(feedback))
    rules = sorted(set(re.findall(r"missing rule: (r\d+)", heard)))
    number = zlib.crc32(heard.encode())
    return rules[number % len(rules)] if rules else f"Remember case {number}."
