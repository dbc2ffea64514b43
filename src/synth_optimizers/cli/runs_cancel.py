"""`runs cancel`: asks the process that carries a run out to end it."""

from __future__ import annotations

from pathlib import Path

from synth_optimizers._synth_optimizers import ask_run
from synth_optimizers.cli.output import write_json, write_text

__all__ = ["cancel_run"]


def cancel_run(run_dir: Path, kind: str, reason: str, *, as_json: bool) -> None:
    """Ask, and write what came of it."""
    answer = ask_run(run_dir, kind, reason)
    if as_json:
        write_json(answer)
    else:
        why = f" ({answer['reason']})" if answer.get("reason") else ""
        write_text(f"{kind} of {answer['run_id']}: {answer['acknowledgement']}, state {answer['state']}{why}")
