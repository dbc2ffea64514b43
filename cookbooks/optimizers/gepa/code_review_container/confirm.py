"""Scores the best checklist of a run on rows that took no part in building this cookbook.

confirm.py RUN_DIR
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from code_review_container.policy import OfflinePolicy
from code_review_container.tasks import Row, make_rows, read_snippets
from code_review_container.verifier import judge

ROWS = 80


def confirmation_rows() -> list[Row]:
    """Create the confirmation rows from separate snippets."""
    return list(make_rows("fresh", ROWS, read_snippets(Path(__file__).with_name("confirm.txt"))))


def mean_f1(prompt: str) -> float:
    """Return the mean F1 of a checklist on these rows."""
    rows = confirmation_rows()
    policy = OfflinePolicy(rows)
    scores = [judge(asyncio.run(policy.review(prompt, row, {})).comments, row.defects).f1 for row in rows]
    return sum(scores) / len(scores)


def main() -> None:
    """Score the best candidate of a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path, help="the directory of a finished run")
    best = json.loads((parser.parse_args().run_dir / "best_candidate.json").read_text(encoding="utf-8"))
    sys.stdout.write(f"F1 {mean_f1(best['payload']['review_prompt']):.4f} on {ROWS} rows\n")


if __name__ == "__main__":
    main()
