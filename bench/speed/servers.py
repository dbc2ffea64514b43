"""The processes that every product meets: the container with the task, and the proposer."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@contextlib.contextmanager
def served(*command: str) -> Iterator[str]:
    """Start a server that prints its port, and yield its address. It ends with the block."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        port = child.stdout.readline() if child.stdout else ""
        yield f"http://127.0.0.1:{int(port)}"
    finally:
        child.kill()
        child.wait()


def container(
    programs: Path, rows: int, needs: int, reply_bytes: int, *flags: str
) -> contextlib.AbstractContextManager[str]:
    """Serve the task."""
    size = ["--train", str(rows), "--heldout", "2", "--needs", str(needs), "--reply-bytes", str(reply_bytes)]
    return served(str(programs / "stub_container"), "--watch-stdin", *size, *flags)


def proposer(seconds: float = 0.0) -> contextlib.AbstractContextManager[str]:
    """Serve the scripted proposer."""
    return served(sys.executable, str(HERE / "proposer.py"), str(seconds))


def counts(url: str) -> dict[str, Any]:
    """Return what the container has counted: requests, executions and the time in which rollouts ran."""
    with urllib.request.urlopen(f"{url}/counts", timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found
