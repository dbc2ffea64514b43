"""The closing summary of a run: gain, cost, and the next command."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from synth_optimizers.cli.formatting import (
    format_cost,
    format_count,
    format_duration,
    format_gain,
    format_gained_rows,
    format_purposes,
    format_score,
    format_shortfall,
    format_stop_rule,
    pluralize,
)
from synth_optimizers.cli.view import Progress

SPLITS = (("train", "train"), ("heldout", "held-out"))


BEST_TO_FILE = ("runs", "best", "{}", "--out", "best.txt")
APPLY = ("runs", "apply", "{}")


def summary_lines(
    run: Progress,
    place: Path | str,
    now: float,
    next_command: Sequence[str] | None = BEST_TO_FILE,
    sentence: str | None = None,
) -> list[tuple[str, str]]:
    """Return the lines of the summary as pairs of label and text.

    `next_command` is for a run with a best candidate. `sentence` says what the held-out rows of a completed run show.
    """
    if run.final_event is None:
        return _unfinished_lines(run, place, now)
    fields = run.final_event.fields
    lines = [("run", f"{run.run_id} {run.state} in {format_duration(run.elapsed(now))}")]
    if run.final_event.type == "gepa.run.finished":
        lines += _score_lines(fields, sentence)
        lines.append(("best", fields["best_candidate_id"]))
        counts = f"{pluralize(fields['generations'], 'generation')}, {pluralize(fields['candidates'], 'candidate')}"
        lines.append(("search", f"{run.fold.search()}: {counts}" if run.fold.search() else counts))
        lines.append(("stopped by", format_stop_rule(fields["stopped_by"])))
    else:
        best = fields.get("best_candidate_id")
        lines.append(("best so far", best or "no candidate was evaluated"))
        if run.final_event.type == "gepa.run.cancelled":
            lines.append(("reason", fields["reason"]))
    lines += _usage_lines(fields, run.fold.totals())
    lines.append(("artifacts", display_path(place)))
    if fields.get("best_candidate_id") and next_command is not None:
        lines.append(("next", command_for(*(place if part == "{}" else part for part in next_command))))
    return lines


def command_for(*parts: str | Path) -> str:
    """Return a command of this program as a person would type it."""
    return shlex.join(["synth-optimizers", *(display_path(part) if isinstance(part, Path) else part for part in parts)])


def display_path(path: Path | str) -> str:
    """Return a path relative to the working directory if it is beneath it. A URL is returned unchanged."""
    if isinstance(path, str):
        return path
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _score_lines(fields: dict[str, Any], sentence: str | None) -> list[tuple[str, str]]:
    scores = {(named["role"], named["split"]): named["score"] for named in fields["scores"]}
    lines = []
    for split, name in SPLITS:
        seed, best = scores.get(("seed", split)), scores.get(("best", split))
        if seed is None and best is None:
            lines.append((name, "not evaluated"))
        else:
            lines += comparison_lines(split, (seed, best), fields.get(f"{split}_gain"), sentence)
    return [*lines, *result_lines(sentence)]


def result_lines(sentence: str | None) -> list[tuple[str, str]]:
    """Return what the held-out rows of a run show, if it is known."""
    return [("result", sentence)] if sentence else []


def comparison_lines(
    split: str,
    scores: tuple[dict[str, Any] | None, dict[str, Any] | None],
    gained: dict[str, Any] | None,
    sentence: str | None,
) -> list[tuple[str, str]]:
    """Return the scores of the initial and the best candidate on the rows of one split.

    The sentence of the result has the interval of the held-out gain.
    """
    seed, best = scores
    lines = [(dict(SPLITS)[split], f"seed {format_score(seed)}"), ("", f"best {format_score(best)}")]
    if gained is None:
        return lines
    if split == "train":
        gain = f"{format_gain(gained)}, chosen by the search"
    else:
        gain = format_gained_rows(gained) if sentence else format_gain(gained)
    return [*lines, ("", f"gain {gain}")]


def _usage_lines(fields: dict[str, Any], totals: dict[str, Any]) -> list[tuple[str, str]]:
    rollouts, bill, failed = fields["rollouts"], fields["bill"], totals["rollouts_failed"]
    purposes = format_purposes(totals["rollouts_by_purpose"])
    lost = f", {failed:,} of them failed" if failed else ""
    unknown = f", {rollouts['unknown_outcomes']} with unknown outcome" if rollouts["unknown_outcomes"] else ""
    return [
        ("rollouts", f"{rollouts['train']:,} train, {rollouts['heldout']:,} held-out{lost}{unknown}"),
        *([("", purposes)] if purposes else []),
        ("calls", f"{bill['sent_calls']:,} sent, {bill['cached_calls']:,} cached"),
        ("tokens", format_count(bill["total_tokens"])),
        ("cost", format_cost(bill["cost_usd"])),
        *(("exceeded", format_shortfall(shortfall)) for shortfall in bill.get("shortfalls", ())),
    ]


def _unfinished_lines(run: Progress, place: Path | str, now: float) -> list[tuple[str, str]]:
    lines = [
        ("run", f"{run.run_id or Path(place).name} has not ended; saved after {format_duration(run.elapsed(now))}")
    ]
    totals, found = run.fold.totals(), run.fold.shown()
    if totals["best"] is not None:
        lines.append(("best so far", f"{totals['best']['candidate_id']} {format_score(found['best_train_score'])}"))
    if found["seed_train_score"] is not None:
        lines.append(("seed", format_score(found["seed_train_score"])))
    lines.append(("rollouts", f"{totals['train_rollouts']:,} train, {totals['heldout_rollouts']:,} held-out"))
    lines.append(("tokens", format_count(totals["usage"]["total_tokens"])))
    lines.append(("cost", format_cost(totals["usage"]["cost_usd"])))
    lines.append(("artifacts", display_path(place)))
    # A service resumes its runs by itself.
    next_command = ("runs", "watch") if isinstance(place, str) else ("gepa", "resume")
    lines.append(("next", command_for(*next_command, place)))
    return lines
