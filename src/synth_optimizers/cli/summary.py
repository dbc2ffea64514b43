"""The closing summary of a run: what was gained, what it cost, and what to do next."""

import shlex
from pathlib import Path
from typing import Any

from synth_optimizers.cli.view import Progress
from synth_optimizers.cli.words import counted, gain, money, score, span, stop_reason, tokens

SPLITS = (("train", "train"), ("heldout", "held-out"))


def closing(run: Progress, place: Path | str, now: float) -> list[tuple[str, str]]:
    """Return the lines of the summary as label and text."""
    if run.ending is None:
        return _unfinished(run, place, now)
    fields = run.ending.fields
    lines = [("run", f"{run.run_id} {run.state} in {span(run.elapsed(now))}")]
    if run.ending.type == "gepa.run.finished":
        lines += _scores(fields)
        lines.append(("best", fields["best_candidate_id"]))
        lines.append(
            ("search", f"{counted(fields['generations'], 'generation')}, {counted(fields['candidates'], 'candidate')}")
        )
        lines.append(("stopped by", stop_reason(fields["stopped_by"])))
    else:
        best = fields.get("best_candidate_id")
        lines.append(("best so far", best or "no candidate was measured"))
        if run.ending.type == "gepa.run.cancelled":
            lines.append(("reason", fields["reason"]))
    lines += _bill(fields)
    lines.append(("artifacts", shown(place)))
    if fields.get("best_candidate_id"):
        lines.append(("next", command_for("runs", "best", place, "--out", "best.txt")))
    return lines


def command_for(*parts: str | Path) -> str:
    """Write a command of this program as a person would type it."""
    return shlex.join(["synth-optimizers", *(shown(part) if isinstance(part, Path) else part for part in parts)])


def shown(path: Path | str) -> str:
    """Write a path as a person would: from the working directory, if it is beneath it. A URL is written as it is."""
    if isinstance(path, str):
        return path
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _scores(fields: dict[str, Any]) -> list[tuple[str, str]]:
    scores = {(named["role"], named["split"]): named["score"] for named in fields["scores"]}
    lines = []
    for split, name in SPLITS:
        seed, best = scores.get(("seed", split)), scores.get(("best", split))
        if seed is None and best is None:
            lines.append((name, "not measured"))
        else:
            lines += compared(name, seed, best, fields.get(f"{split}_gain"))
    return lines


def compared(
    name: str, seed: dict[str, Any] | None, best: dict[str, Any] | None, gained: dict[str, Any] | None
) -> list[tuple[str, str]]:
    """Return seed and best on the rows of one split."""
    lines = [(name, f"seed {score(seed)}"), ("", f"best {score(best)}")]
    return [*lines, ("", f"gain {gain(gained)}")] if gained else lines


def _bill(fields: dict[str, Any]) -> list[tuple[str, str]]:
    rollouts, bill = fields["rollouts"], fields["bill"]
    unknown = f", {rollouts['unknown_outcomes']} with unknown outcome" if rollouts["unknown_outcomes"] else ""
    return [
        ("rollouts", f"{rollouts['train']:,} train, {rollouts['heldout']:,} held-out{unknown}"),
        ("calls", f"{bill['paid_calls']:,} paid, {bill['cached_calls']:,} from the cache"),
        ("tokens", tokens(bill["total_tokens"])),
        ("cost", money(bill["cost_usd"])),
    ]


def _unfinished(run: Progress, place: Path | str, now: float) -> list[tuple[str, str]]:
    lines = [("run", f"{run.run_id or Path(place).name} is not over; saved after {span(run.elapsed(now))}")]
    totals, found = run.fold.totals(), run.fold.shown()
    if totals["best"] is not None:
        lines.append(("best so far", f"{totals['best']['candidate_id']} {score(found['best_score'])}"))
    if found["seed_score"] is not None:
        lines.append(("seed", score(found["seed_score"])))
    lines.append(("rollouts", f"{totals['train_rollouts']:,} train, {totals['heldout_rollouts']:,} held-out"))
    lines.append(("tokens", tokens(totals["usage"]["total_tokens"])))
    lines.append(("cost", money(totals["usage"]["cost_usd"])))
    lines.append(("artifacts", shown(place)))
    # A service goes on with its runs by itself.
    next_command = ("runs", "watch") if isinstance(place, str) else ("gepa", "resume")
    lines.append(("next", command_for(*next_command, place)))
    return lines
