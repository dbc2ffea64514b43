"""The client that waits is generated from the one for event loops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "unasync"


def test_the_generated_files_are_fresh() -> None:
    command = [sys.executable, str(TOOL), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert checked.returncode == 0, checked.stderr
