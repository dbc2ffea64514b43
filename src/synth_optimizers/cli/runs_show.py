"""`runs show`: everything about one run on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from synth_optimizers.cli.lines import stop_reason
from synth_optimizers.cli.output import table, write_json, write_text
from synth_optimizers.cli.summary import command_for
from synth_optimizers.cli.words import counted, gain, money, number, one_line, score, tokens, when

if TYPE_CHECKING:
    from synth_optimizers.cli.source import RunSource
    from synth_optimizers.status import RunStatus

__all__ = ["show_run"]


def show_run(run: RunSource, *, as_json: bool) -> None:
    """Write what is known about a run, live or over."""
    summary, status = run.summary(), run.status()
    artifacts, place = run.artifacts(), run.place
    if as_json:
        write_json({**summary, "state": run.state(), "artifacts": [run.located(name) for name in artifacts]})
        return
    for label, text in _head(status, summary, run):
        write_text(f"{label:<12}{text}".rstrip())
    if summary["candidates"]:
        write_text("")
        titles = ("candidate", "gen", "train", "held-out", "status", "parent", "screen", "why")
        best, frontier = status.best_candidate_id, set(_frontier_ids(summary))
        table(titles, [_candidate(known, best, frontier) for known in summary["candidates"]])
        write_text("* best, + on the frontier")
    write_text("")
    write_text(f"{'artifacts':<12}{place}")
    for name in artifacts:
        write_text(f"{'':<12}{name}")
    if not isinstance(place, str) and not status.is_over and not status.is_held:
        write_text(f"{'next':<12}{command_for('gepa', 'resume', place)}")
    elif status.best_candidate_id is not None:
        write_text(f"{'next':<12}{command_for('runs', 'diff', place)}")


def _head(status: RunStatus, summary: dict[str, Any], run: RunSource) -> list[tuple[str, str]]:
    overview, gains = summary["overview"], (summary.get("train_gain"), summary.get("heldout_gain"))
    scores = {known["candidate_id"]: known for known in summary["candidates"]}
    seed = summary["candidates"][0] if summary["candidates"] else {}
    best = scores.get(status.best_candidate_id or "", {})
    lines = [("run", status.run_id), ("state", run.state()), *run.notes()]
    if status.is_held:
        lines.append(("held by", str(status.holder)))
    lines += [("started", when(status.started_at)), ("finished", when(status.finished_at))]
    for split, name, gained in zip(("train", "heldout"), ("train", "held-out"), gains, strict=True):
        lines.append((name, f"seed {score(seed.get(f'{split}_score'))}"))
        lines.append(("", f"best {score(best.get(f'{split}_score'))}"))
        if gained:
            lines.append(("", f"gain {gain(gained)}"))
    failed = f", {status.rollouts_failed:,} failed" if status.rollouts_failed else ""
    lines.append(
        ("rollouts", f"{status.rollouts_finished:,} scored{failed} of {status.rollouts_requested:,} asked for")
    )
    lines.append(
        ("proposer", f"{counted(status.proposer_turns, 'turn')} in {counted(status.generations, 'generation')}")
    )
    lines.append(("calls", f"{status.paid_calls:,} paid, {status.cached_calls:,} from the cache"))
    lines.append(("tokens", tokens(status.total_tokens)))
    lines.append(("cost", money(overview["cost_usd"])))
    if status.stopped_by:
        lines.append(("stopped by", stop_reason(status.stopped_by)))
    if status.failure:
        lines.append(("error", one_line(str(status.failure.get("message", status.failure)), 300)))
        if status.failure.get("hint"):
            lines.append(("hint", str(status.failure["hint"])))
    return lines


def _frontier_ids(summary: dict[str, Any]) -> list[str]:
    frontier = summary.get("frontier") or []
    return [member if isinstance(member, str) else str(member.get("candidate_id")) for member in frontier]


def _candidate(known: dict[str, Any], best: str | None, frontier: set[str]) -> tuple[str, ...]:
    candidate_id = known["candidate_id"]
    mark = "*" if candidate_id == best else "+" if candidate_id in frontier else " "
    generation = "-" if known["generation"] is None else str(known["generation"])
    judged = known["acceptance_metadata"][-1]["reason"] if known["acceptance_metadata"] else ""
    rewards = [known[f"{name}_reward"] for name in ("train", "heldout", "minibatch")]
    train, heldout, screen = ["-" if reward is None else number(reward) for reward in rewards]
    parent = " and ".join(known["parent_ids"]) or known["source"]
    return f"{mark} {candidate_id}", generation, train, heldout, known["status"], parent, screen, judged
