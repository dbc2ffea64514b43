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
    run: Progress, place: Path | str, now: float, next_command: Sequence[str] | None = BEST_TO_FILE
) -> list[tuple[str, str]]:
    """Return the lines of the summary as pairs of label and text. `next_command` is for a run with a best candidate."""
    if run.final_event is None:
        return _unfinished_lines(run, place, now)
    fields = run.final_event.fields
    lines = [("run", f"{run.run_id} {run.state} in {format_duration(run.elapsed(now))}")]
    if run.final_event.type == "gepa.run.finished":
        lines += _score_lines(fields)
        lines.append(("best", fields["best_candidate_id"]))
        lines.append(
            (
                "search",
                f"{pluralize(fields['generations'], 'generation')}, {pluralize(fields['candidates'], 'candidate')}",
            )
        )
        lines.append(("stopped by", format_stop_rule(fields["stopped_by"])))
    else:
        best = fields.get("best_candidate_id")
        lines.append(("best so far", best or "no candidate was evaluated"))
        if run.final_event.type == "gepa.run.cancelled":
            lines.append(("reason", fields["reason"]))
    lines += _usage_lines(fields, run.fold.totals()["rollouts_failed"])
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


def _score_lines(fields: dict[str, Any]) -> list[tuple[str, str]]:
    scores = {(named["role"], named["split"]): named["score"] for named in fields["scores"]}
    lines = []
    for split, name in SPLITS:
        seed, best = scores.get(("seed", split)), scores.get(("best", split))
        if seed is None and best is None:
            lines.append((name, "not evaluated"))
        else:
            lines += comparison_lines(name, seed, best, fields.get(f"{split}_gain"))
    return lines


def comparison_lines(
    name: str, seed: dict[str, Any] | None, best: dict[str, Any] | None, gained: dict[str, Any] | None
) -> list[tuple[str, str]]:
    """Return the scores of the initial and the best candidate on the rows of one split."""
    lines = [(name, f"seed {format_score(seed)}"), ("", f"best {format_score(best)}")]
    return [*lines, ("", f"gain {format_gain(gained)}")] if gained else lines


def _usage_lines(fields: dict[str, Any], failed: int) -> list[tuple[str, str]]:
    rollouts, bill = fields["rollouts"], fields["bill"]
    lost = f", {failed:,} of them failed" if failed else ""
    unknown = f", {rollouts['unknown_outcomes']} with unknown outcome" if rollouts["unknown_outcomes"] else ""
    return [
        ("rollouts", f"{rollouts['train']:,} train, {rollouts['heldout']:,} held-out{lost}{unknown}"),
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
