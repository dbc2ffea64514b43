"""`runs cancel`, `pause` and `resume`: asks whoever carries a run out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synth_optimizers.cli.output import write_json, write_text

if TYPE_CHECKING:
    from synth_optimizers.cli.source import RunSource

__all__ = ["ask"]


def ask(run: RunSource, kind: str, reason: str, *, as_json: bool) -> None:
    """Ask, and write what came of it."""
    answer = run.ask(kind, reason)
    if as_json:
        write_json(answer)
    else:
        why = f" ({answer['reason']})" if answer.get("reason") else ""
        write_text(f"{kind} of {answer['run_id']}: {answer['acknowledgement']}, state {answer['state']}{why}")
