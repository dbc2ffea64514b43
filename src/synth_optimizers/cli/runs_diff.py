"""`runs diff`: what changed from one candidate to another, word by word."""

from __future__ import annotations

import difflib
import sys
from typing import TYPE_CHECKING, Any

import click

from synth_optimizers.cli.faults import NothingThere, Refusal
from synth_optimizers.cli.output import is_coloured, say, write_json, write_text
from synth_optimizers.diff import Change, word_diff

if TYPE_CHECKING:
    from synth_optimizers.cli.source import RunSource

__all__ = ["show_diff"]

MARKS = {"same": "{}", "removed": "[-{}-]", "added": "{{+{}+}}"}


def show_diff(run: RunSource, names: tuple[str, ...], *, as_json: bool) -> None:
    """Write the difference of two candidates, field by field."""
    summary = run.summary()
    before, after = _chosen(summary, names, run)
    fields = sorted({*before["payload"], *after["payload"]})
    changes = {name: word_diff(before["payload"].get(name, ""), after["payload"].get(name, "")) for name in fields}
    if as_json:
        pieces = {name: [{"change": change, "text": text} for change, text in diff] for name, diff in changes.items()}
        write_json({"before": before["candidate_id"], "after": after["candidate_id"], "fields": pieces})
        return
    say(f"{before['candidate_id']} -> {after['candidate_id']}")
    coloured = is_coloured(sys.stdout)
    for name, diff in changes.items():
        same = all(change == "same" for change, _ in diff)
        write_text(f"# {name}" + (" (unchanged)" if same else ""))
        if not same:
            write_text("".join(_piece(change, text, coloured) for change, text in diff))


def _chosen(summary: dict[str, Any], names: tuple[str, ...], run: RunSource) -> tuple[dict[str, Any], dict[str, Any]]:
    known = {candidate["candidate_id"]: candidate for candidate in summary["candidates"]}
    if len(names) == 2:
        return _candidate(known, names[0]), _candidate(known, names[1])
    if names:
        raise Refusal(
            f"one candidate is named ({names[0]}), and a difference needs two",
            "Name two candidates, or none for the seed and the best one.",
        )
    best = known.get(summary["overview"]["best_candidate_id"])
    if best is None:
        raise NothingThere(
            f"the run in {run.place} has no best candidate: no candidate was measured",
            f"`synth-optimizers runs show {run.place}` tells how far it came.",
        )
    return summary["candidates"][0], best


def _candidate(known: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """Find a candidate by its id or by the beginning of it."""
    found = [candidate_id for candidate_id in known if candidate_id == name]
    found = found or [candidate_id for candidate_id in known if candidate_id.removeprefix("gepa_").startswith(name)]
    if len(found) == 1:
        return known[found[0]]
    if found:
        raise Refusal(f"{name!r} may be {' or '.join(found)}", "Write more of the id.")
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise Refusal(f"the run has no candidate {name!r}", f"{hint}`synth-optimizers runs show` lists its candidates.")


def _piece(change: Change, text: str, coloured: bool) -> str:
    if not coloured:
        return MARKS[change].format(text)
    if change == "same":
        return text
    return click.style(text, fg="red" if change == "removed" else "green", strikethrough=change == "removed")
