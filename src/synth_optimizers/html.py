"""A result as a notebook shows it: scores with intervals, the chart, the best texts and what changed in them."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from synth_optimizers.diff import word_diff
from synth_optimizers.errors import SynthOptimizerError
from synth_optimizers.scores import Gain, Score

if TYPE_CHECKING:
    from synth_optimizers.result import GepaRunResult

_STYLES = {
    "same": "",
    "removed": "background:#fdd;color:#600;text-decoration:line-through",
    "added": "background:#dfd;color:#060",
}
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid #8888;border-radius:4px;padding:8px"


def result_html(result: GepaRunResult) -> str:
    """Return the result as a piece of HTML that needs nothing else."""
    scores = result.scores
    cost = "unknown" if result.cost_usd is None else f"${result.cost_usd:.4f}"
    rows = [
        _row("train", scores.seed_train, scores.best_train, scores.train_gain),
        _row("held-out", scores.seed_heldout, scores.best_heldout, scores.heldout_gain),
    ]
    parts = [
        f"<h3>Run {escape(result.run_id)}</h3>",
        "<table><thead><tr><th>rows</th><th>seed</th><th>best</th><th>gain</th></tr></thead>",
        f"<tbody>{''.join(rows)}</tbody></table>",
        f"<p>{result.candidates} candidates, {result.rollouts.get('finished', 0)} rollouts, cost {cost}</p>",
        _chart(Path(result.score_chart_path)),
        *_texts(result),
        f"<p>Everything is in <code>{escape(result.run_dir)}</code>.</p>",
    ]
    return f'<div class="synth-optimizers-result">{"".join(parts)}</div>'


def _row(split: str, seed: Score | None, best: Score | None, gain: Gain | None) -> str:
    cells = "".join(
        f"<td>{'not measured' if value is None else escape(str(value))}</td>" for value in (seed, best, gain)
    )
    return f"<tr><th>{split}</th>{cells}</tr>"


def _chart(path: Path) -> str:
    """Return the chart, which is our own SVG; without the file there is none to show."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _texts(result: GepaRunResult) -> list[str]:
    try:
        seed = result.seed_prompt()
    except SynthOptimizerError:
        seed = {}
    parts = []
    for name, text in result.best_prompt.items():
        parts.append(f"<h4>{escape(name)}</h4><div style='{_TEXT}'>{escape(text)}</div>")
        before = seed.get(name)
        if before is not None and before != text:
            pieces = "".join(
                f"<span style='{_STYLES[change]}'>{escape(piece)}</span>" for change, piece in word_diff(before, text)
            )
            parts.append(
                f"<details><summary>changes from the seed</summary><div style='{_TEXT}'>{pieces}</div></details>"
            )
    return parts
