"""Formats scores, gains, money, tokens, times and counts; every command uses these functions."""

import difflib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any


def format_number(value: float) -> str:
    """Format a score with four decimals, as event messages do."""
    return f"{value:.4f}"


def format_interval(low: float | None, high: float | None) -> str:
    """Format a 95 % interval with a leading space; empty when it is unknown."""
    return "" if low is None or high is None else f" [{low:.4f}, {high:.4f}]"


def format_score(score: Mapping[str, Any] | None) -> str:
    """Format a score: `0.4167 [0.2447, 0.6121] on 24 rows`."""
    if score is None:
        return "no score"
    interval = format_interval(score.get("low"), score.get("high"))
    return f"{format_number(score['mean'])}{interval} on {pluralize(score['n'], 'row')}"


def format_gain(gain: Mapping[str, Any]) -> str:
    """Format a gain: `+0.2500 [0.0500, 0.4500] (8 better, 2 worse, 14 equal)`."""
    rows = f"{gain['wins']} better, {gain['losses']} worse, {gain['ties']} equal"
    return f"{gain['difference']:+.4f}{format_interval(gain.get('low'), gain.get('high'))} ({rows})"


def format_gained_rows(gain: Mapping[str, Any]) -> str:
    """Format a gain whose interval another line shows: `+0.2500 (8 better, 2 worse, 14 equal)`."""
    return format_gain({**gain, "low": None, "high": None})


def format_purposes(purposes: Mapping[str, int]) -> str:
    """Format train rollouts by purpose: `48 initial, 24 screening, 40 full evaluation`; empty if there are none."""
    counted = {name.replace("_", " "): count for name, count in purposes.items() if name != "heldout" and count}
    return ", ".join(f"{count:,} {name}" for name, count in counted.items())


def format_waiting(waiting: Mapping[str, Any]) -> str:
    """Return what a run waits for, why, and when it tries again."""
    next_try = datetime.fromtimestamp(waiting["next_try_at"] / 1000, UTC).strftime("%H:%M:%S")
    return (
        f"for the {waiting['waiting_for']}: {waiting['cause']} (try {waiting['tries']} failed, next at {next_try} UTC)"
    )


def format_concurrency(change: Mapping[str, Any]) -> str:
    """Return how many rollouts run at once, and why not more."""
    status = change.get("status")
    because = "because it was overloaded" if status is None else f"because the container answered {status}"
    return f"{change['new_limit']} of {change['workers']} at once, {because}"


def format_shortfall(shortfall: Mapping[str, Any]) -> str:
    """Return a limit that was exceeded, with the amount that was spent."""
    kind, limit, spent = shortfall["kind"], shortfall["limit"], shortfall["spent"]
    return f"{spent:g} of {limit:g} spent ({kind}): calls used more than their estimates"


def format_cost(cost_usd: float | None) -> str:
    """Format a cost in dollars; an unknown cost is `unknown`, never 0."""
    if cost_usd is None:
        return "unknown"
    return f"${cost_usd:,.2f}" if cost_usd >= 100 else f"${cost_usd:.4f}"


def format_count(count: float) -> str:
    """Format a token count with separators."""
    return f"{int(count):,}"


def pluralize(count: int, noun: str) -> str:
    """Format a count with its noun: `1 rollout`, `2 rollouts`."""
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def format_duration(seconds: float) -> str:
    """Format a duration, as the replay of a feed does: `12.3s`, `4m07s`, `2h05m`."""
    seconds = max(0.0, seconds)
    whole = int(seconds)
    if whole < 60:
        return f"{int(seconds * 10) / 10:.1f}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole // 60 % 60:02}m"


def format_stop_rule(by: Mapping[str, Any]) -> str:
    """Format the stop rule that ended the search, with its limit and reason."""
    text = str(by["kind"])
    if by.get("value") is not None and by.get("limit") is not None:
        text += f" ({by['value']:g} of {by['limit']:g})"
    return f"{text}: {one_line(by['reason'])}" if by.get("reason") else text


def epoch_seconds(ts: str) -> float:
    """Convert the timestamp of an event to seconds since the epoch."""
    return datetime.fromisoformat(ts).timestamp()


def format_time(ts: str | None) -> str:
    """Format a timestamp to the second, in UTC; a dash without one."""
    if not ts:
        return "-"
    return datetime.fromisoformat(ts).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the nearest known name and a trailing space; empty when none is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {near[0]!r}? " if near else ""


def one_line(text: str, longest: int = 120) -> str:
    """Return a text on one line, cut to a length."""
    words = " ".join(text.split())
    return words if len(words) <= longest else words[: longest - 1] + "…"
