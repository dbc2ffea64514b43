"""`runs best`: the last mile, the texts of the best candidate where they are needed."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from synth_optimizers.cli.faults import NothingThere, Refusal
from synth_optimizers.cli.files import write_file
from synth_optimizers.cli.output import say, write_text
from synth_optimizers.cli.words import score

if TYPE_CHECKING:
    from synth_optimizers.cli.source import RunSource

__all__ = ["write_best"]


def write_best(run: RunSource, *, out: Path | None, field: str | None, shape: str, force: bool) -> None:
    """Write the best texts to stdout or to a file."""
    best = run.best()
    if best is None:
        raise NothingThere(
            f"the run in {run.place} has no best candidate: no candidate was measured",
            f"`synth-optimizers runs show {run.place}` tells how far it came.",
        )
    texts = {str(name): str(text) for name, text in best["payload"].items()}
    if field is not None:
        texts = {field: _text(texts, field)}
    text = _json(texts) if shape == "json" else _plain(texts)
    if out is None:
        write_text(text, newline=not text.endswith("\n"))
        return
    # A single text is written as it is: it is what the program reads.
    write_file(out, lambda file: file.write(text.encode()), force=force)
    say(f"{out}: {', '.join(texts)} of {best['candidate_id']}, train {score(best.get('train_score'))}")


def _text(texts: dict[str, str], field: str) -> str:
    if field in texts:
        return texts[field]
    near = difflib.get_close_matches(field, texts, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise Refusal(f"the best candidate has no field {field!r}", f"{hint}Its fields are {', '.join(sorted(texts))}.")


def _json(texts: dict[str, str]) -> str:
    return json.dumps(texts, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _plain(texts: dict[str, str]) -> str:
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "\n".join(f"# {name}\n{text.rstrip()}\n" for name, text in texts.items())
