"""The processes that every product meets: the container with the task, and the proposer."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from task import filler

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


@contextlib.contextmanager
def container(programs: Path, rows: int, needs: int, reply_bytes: int, *flags: str) -> Iterator[str]:
    """Serve the task, with a text of so many bytes in every reply."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as content:
        json.dump(filler(reply_bytes), content)
        content.flush()
        size = ["--train", str(rows), "--heldout", "2", "--needs", str(needs), "--reply-bytes", "0"]
        program = str(programs / "stub_container")
        with served(program, "--watch-stdin", *size, "--extra", content.name, *flags) as url:
            yield url


def proposer(seconds: float = 0.0) -> contextlib.AbstractContextManager[str]:
    """Serve the scripted proposer."""
    return served(sys.executable, str(HERE / "proposer.py"), str(seconds))


def counts(url: str) -> dict[str, Any]:
    """Return what the container has counted: requests, executions and the time in which rollouts ran."""
    with urllib.request.urlopen(f"{url}/counts", timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found
