"""Numbers in words: scores, gains, money, tokens, time and counts as every command writes them."""

import difflib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any


def number(value: float) -> str:
    """Write a score with four decimals, as in the messages of events."""
    return f"{value:.4f}"


def interval(low: float | None, high: float | None) -> str:
    """Write a 95 % interval with a leading space; nothing when it is unknown."""
    return "" if low is None or high is None else f" [{low:.4f}, {high:.4f}]"


def score(score: Mapping[str, Any] | None) -> str:
    """Write `0.4167 [0.2447, 0.6121] on 24 rows`."""
    if score is None:
        return "no score"
    return f"{number(score['mean'])}{interval(score.get('low'), score.get('high'))} on {counted(score['n'], 'row')}"


def gain(gain: Mapping[str, Any]) -> str:
    """Write `+0.2500 [0.0500, 0.4500] (8 better, 2 worse, 14 equal)`."""
    rows = f"{gain['wins']} better, {gain['losses']} worse, {gain['ties']} equal"
    return f"{gain['difference']:+.4f}{interval(gain.get('low'), gain.get('high'))} ({rows})"


def money(cost_usd: float | None) -> str:
    """Write dollars; what nobody told is unknown, never 0."""
    if cost_usd is None:
        return "unknown"
    return f"${cost_usd:,.2f}" if cost_usd >= 100 else f"${cost_usd:.4f}"


def tokens(count: float) -> str:
    """Write a count with separators."""
    return f"{int(count):,}"


def counted(count: int, noun: str) -> str:
    """Write `1 rollout`, `2 rollouts`."""
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def span(seconds: float) -> str:
    """Write `12.3s`, `4m07s`, `2h05m`, as the replay of a feed does."""
    seconds = max(0.0, seconds)
    whole = int(seconds)
    if whole < 60:
        return f"{int(seconds * 10) / 10:.1f}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole // 60 % 60:02}m"


def stop_reason(by: Mapping[str, Any]) -> str:
    """Write which rule ended the search, with the limit and the reason."""
    text = str(by["kind"])
    if by.get("value") is not None and by.get("limit") is not None:
        text += f" ({by['value']:g} of {by['limit']:g})"
    return f"{text}: {one_line(by['reason'])}" if by.get("reason") else text


def moment(ts: str) -> float:
    """Read a time stamp of an event as seconds since 1970."""
    return datetime.fromisoformat(ts).timestamp()


def when(ts: str | None) -> str:
    """Write a time stamp to the second, in UTC; a dash without one."""
    if not ts:
        return "-"
    return datetime.fromisoformat(ts).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question whether a known name was meant, with a space at its end; nothing when none is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {near[0]!r}? " if near else ""


def one_line(text: str, longest: int = 120) -> str:
    """Return the beginning of a text on one line."""
    words = " ".join(text.split())
    return words if len(words) <= longest else words[: longest - 1] + "…"
