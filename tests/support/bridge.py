"""Bridges in processes of their own, run from the archive by an interpreter that has nothing installed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth_optimizers.bridge import archive

PYTHON = os.environ.get("SYNTH_BRIDGE_PYTHON") or shutil.which("python3") or sys.executable
"""The interpreter of the bridges. It needs no package."""


@dataclass(frozen=True)
class Reply:
    """An HTTP answer."""

    status: int
    body: Any
    headers: dict[str, str]


class Bridge:
    """A bridge that runs."""

    def __init__(self, process: subprocess.Popen[str], name: str, address: str, errors: Path) -> None:
        self.process = process
        self.name = name
        self.address = address
        self._errors = errors

    @property
    def url(self) -> str:
        """Return the URL."""
        return f"http://{self.address}"

    def errors(self) -> str:
        """Return everything that was printed to standard error."""
        return self._errors.read_text()

    def ask(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Reply:
        """Send one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        sent = {"content-type": "application/json"} if body is not None else {}
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        try:
            connection.request(method, path, data, {**sent, **(headers or {})})
            answer = connection.getresponse()
            return Reply(answer.status, json.loads(answer.read()), dict(answer.getheaders()))
        finally:
            connection.close()

    def ids(self, split: str = "train") -> list[str]:
        """Return the task ids of a split."""
        ids: list[str] = self.ask("GET", "/taskset").body["splits"][split]
        return ids

    def request(self, rollout_id: str, *, prompt: str = "hello", row: int = 0, mode: str = "sync") -> dict[str, Any]:
        """Return the body of a rollout."""
        task = self.ask("POST", "/taskset/tasks", {"split": "train", "task_ids": [self.ids()[row]]}).body["tasks"][0]
        body = {"rollout_id": rollout_id, "submission_mode": mode, "candidate": {"prompt": prompt}, "task": task}
        return {**body, "metadata": {"stage": "test"}}

    def rollout(self, rollout_id: str, *, prompt: str = "hello", row: int = 0, mode: str = "sync") -> Reply:
        """Send a rollout."""
        return self.ask("POST", "/rollouts", self.request(rollout_id, prompt=prompt, row=row, mode=mode))

    def rollout_aside(self, rollout_id: str, *, prompt: str = "hello") -> threading.Thread:
        """Send a sync rollout from a thread, and ignore its answer."""
        body = self.request(rollout_id, prompt=prompt)

        def send() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.ask("POST", "/rollouts", body)

        thread = threading.Thread(target=send)
        thread.start()
        return thread

    def kill(self) -> None:
        """Kill the process without any warning."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def preset_python() -> str:
    """Return the Python with the frameworks of the presets, which `make` sets."""
    python = os.environ.get("SYNTH_PRESET_PYTHON")
    if not python:
        raise RuntimeError("SYNTH_PRESET_PYTHON is not set: `make preset-env` makes it, `make py-test` names it")
    return python


def served(
    folder: Path, function: str, *options: str, python: str = PYTHON
) -> contextlib.AbstractContextManager[Bridge]:
    """Serve `evals.py` of a folder until the end of the block."""
    rows = [] if "--rows" in options else ["--rows", "rows.csv"]
    text = [] if "--text" in options else ["--text", "prompt=hello"]
    return serve_command(folder, function, *rows, *text, *options, python=python)


@contextlib.contextmanager
def serve_command(folder: Path, *arguments: str, python: str = PYTHON) -> Iterator[Bridge]:
    """Run `serve` with these arguments until the end of the block."""
    errors = folder / "errors.txt"
    with errors.open("a") as stream:
        process = subprocess.Popen(  # noqa: S603 (our own archive)
            [python, str(archive()), "serve", *arguments],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
        )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        line = process.stdout.readline()
        assert " at http://" in line, errors.read_text()
        name, _, url = line.strip().partition(" at http://")
        yield Bridge(process, name, url, errors)
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
        process.stdin.close()


def run_command(folder: Path, *arguments: str, python: str = PYTHON) -> subprocess.CompletedProcess[str]:
    """Run a command of the bridge to its end."""
    command: Sequence[str] = [python, str(archive()), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
