"""Submits and claims run requests through the Python queue functions, and starts Python subprocesses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cli.commands import environment
from support.example import Example

from service.short_runs import TINY, config_file
from synth_optimizers import workspace_claim_next_run_request, workspace_submit_run_request


def submit_run(
    db: Path,
    example: Example,
    run_id: str = "router",
    priority: int = 0,
    size: Mapping[str, object] = TINY,
) -> str:
    """Submit a run and return the id of its run request."""
    file = config_file(db.parent, example, **{**size, "run__run_id": run_id})
    entry = workspace_submit_run_request(db, db.parent / file, priority)
    assert (entry["status"], entry["run_id"], entry["priority"]) == ("queued", run_id, priority)
    return str(entry["request_id"])


def claim_request(db: Path, lease_id: str = "lease-1", lease_seconds: float = 3600) -> dict[str, Any]:
    """Claim a run request, which must exist."""
    entry = workspace_claim_next_run_request(db, lease_id, "worker-1", lease_seconds)
    assert entry is not None
    return entry


@contextmanager
def python_process(program: str, *arguments: object, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program in a subprocess, and end it with the block."""
    process = subprocess.Popen(  # noqa: S603 (the program under test)
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
