"""The synchronous client is generated from the asynchronous one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "unasync"


def test_the_generated_client_is_up_to_date() -> None:
    command = [sys.executable, str(TOOL), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert checked.returncode == 0, checked.stderr
