"""The offline task as a function and rows that the bridge serves, from its sources, without any package."""

from __future__ import annotations

import argparse
import itertools
import runpy
import sys
from pathlib import Path
from typing import Any

from offline_task import HELDOUT_ROWS, SEED, TRAIN_ROWS, row_of, score

ROWS = [
    row_of(split, seed) for split, count in (("train", TRAIN_ROWS), ("test", HELDOUT_ROWS)) for seed in range(count)
]
COUNT = itertools.count(1)


def main() -> None:
    """Serve until standard input is closed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["500", "nan"])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--watch-stdin", action="store_true", help="accepted; it always ends with standard input")
    args = parser.parse_args()

    def evaluate(care_notes: str, manner: str, row: dict[str, Any]) -> dict[str, Any]:
        """Give good advice about plants."""
        fault = args.fault if next(COUNT) % args.every == 0 else None
        if fault == "500":
            raise RuntimeError("the task broke")
        reward, feedback = score(row, {"care_notes": care_notes})
        usage = {"prompt_tokens": len(care_notes.split() + manner.split()), "completion_tokens": 3, "cost_usd": 0.00002}
        return {"score": float("nan") if fault else reward, "feedback": feedback, "usage": usage}

    # The archive has the same code under a name that needs nothing else of the package.
    sys.path.insert(0, str(_archive()))
    from synth_optimizers_bridge import serve  # type: ignore[import-not-found]

    with serve(evaluate, rows=ROWS, texts=SEED, name="garden.advice", timeout=60) as url:
        sys.stdout.write(f"ready {url.rpartition(':')[2]}\n")
        sys.stdout.flush()
        sys.stdin.buffer.read()


def _archive() -> Path:
    folder = Path(__file__).resolve().parents[2] / "src" / "synth_optimizers" / "bridge"
    module = runpy.run_path(str(folder / "archive.py"))
    path: Path = module["write_archive"](folder.parent / "bridge.pyz", module["archive_bytes"](folder))
    return path


if __name__ == "__main__":
    main()
