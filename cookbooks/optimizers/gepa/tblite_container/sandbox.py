"""Runs untrusted commands and the checks of their outputs, each in a separate jail."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

AUTO = "auto"
WARDEN = Path(__file__).with_name("warden.py")
BATCH = 400
# Keys of the container must not be passed to a process that runs untrusted commands.
PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class SandboxError(RuntimeError):
    """The sandbox itself failed, not the command in it."""


@dataclass(frozen=True)
class Command:
    """A script and the files in its directory."""

    script: str
    files: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 10.0
    output_bytes: int = 1 << 18


@dataclass(frozen=True)
class Outcome:
    """How a command ended. `problem` says why it was killed, if it was."""

    status: int
    stdout: str
    stderr: str
    problem: str

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself and without an error."""
        return self.status == 0 and not self.problem


@dataclass(frozen=True)
class Case:
    """The input of a check: input files, and the output of the pipeline."""

    name: str
    inputs: Sequence[str]
    output: str


@dataclass(frozen=True)
class Verdict:
    """The verdict of one check."""

    check: str
    case: str
    passed: bool
    message: str


class Sandbox:
    """A connection to a warden process. Threads may share it."""

    def __init__(self, wanted: str = AUTO, *, with_checks: bool = True) -> None:
        self._place = tempfile.mkdtemp(prefix="tblite-")
        # A file instead of a pipe, because the pipe would not be read while the warden works.
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (closed with the warden)
        warm = "pytest" if with_checks else "nothing"
        self._warden = subprocess.Popen(  # noqa: S603 (script of this repository)
            [sys.executable, "-B", str(WARDEN), self._place, wanted, warm],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
            text=True,
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
        )
        self._closing = threading.Lock()
        line = self._warden.stdout.readline() if self._warden.stdout else ""
        if not line:
            said = self.close()
            hint = "; start it as a user other than root" if os.getuid() == 0 else ""
            told = f" (the warden: {said})" if said else ""
            raise SandboxError(f"no sandbox of the kind {wanted!r} holds on this machine{hint}{told}")
        self.kind = line.strip()

    def run(self, commands: Sequence[Command]) -> list[Outcome]:
        """Run commands one after the other, each in a fresh directory."""
        outcomes: list[Outcome] = []
        for start in range(0, len(commands), BATCH):
            batch = [asdict(command) for command in commands[start : start + BATCH]]
            outcomes += [Outcome(**entry) for entry in self._ask({"do": "run", "commands": batch})]
        return outcomes

    def check(self, family: str, cases: Sequence[Case], seconds: float = 10.0) -> list[Verdict]:
        """Check outputs with the checks of a family, with pytest."""
        job = {"do": "check", "family": family, "cases": [asdict(case) for case in cases], "seconds": seconds}
        return [Verdict(**entry) for entry in self._ask(job)]

    def _ask(self, job: Mapping[str, Any]) -> list[dict[str, Any]]:
        try:
            with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rwb") as stream:
                connection.connect(f"{self._place}/warden")
                stream.write(json.dumps(job).encode() + b"\n")
                stream.flush()
                answer = json.loads(stream.read() or b'{"error": "no answer"}')
        except OSError as error:
            raise SandboxError(f"the warden cannot be reached: {error}") from error
        if "error" in answer:
            raise SandboxError(answer["error"])
        done: list[dict[str, Any]] = answer["done"]
        return done

    def close(self) -> str:
        """End the warden and return the last line of its stderr."""
        with self._closing:
            for pipe in (self._warden.stdin, self._warden.stdout):
                if pipe and not pipe.closed:
                    pipe.close()
            try:
                self._warden.wait(5)
            except subprocess.TimeoutExpired:
                self._warden.kill()
                self._warden.wait()
            shutil.rmtree(self._place, ignore_errors=True)
            if self._stderr.closed:
                return ""
            with self._stderr:
                self._stderr.seek(0)
                return "".join(line.strip() for line in deque(self._stderr, 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
