"""Runs commands in subprocesses, and compares their output with snapshots."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.polling import WAIT_TIMEOUT_SECONDS

SNAPSHOTS = Path(__file__).parent / "snapshots"
SOURCES = Path(__file__).parents[2] / "src"
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV")
VOLATILE = (
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:{PORT}"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z"), "{TIME}"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d\b"), "{TIME}"),
    (re.compile(r"^ *\d+(\.\d+s|m\d\ds)  ", re.MULTILINE), "{SPAN}  "),
    (re.compile(r"\b\d+\.\ds\b"), "{SPAN}"),
    (re.compile(r"\bpid \d+"), "pid {PID}"),
    # The brief of a proposer turn contains addresses.
    (re.compile(r"^(tokens +)[\d,]+$", re.MULTILINE), r"\1{COUNT}"),
)


@dataclass(frozen=True)
class CommandResult:
    """The exit code and output of a command that has ended."""

    arguments: tuple[str, ...]
    code: int
    stdout: str
    stderr: str


def environment(**more: str) -> dict[str, str]:
    """Return an environment without the settings of the person who runs the tests."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {**kept, "PYTHONPATH": str(SOURCES), "PYTHONWARNINGS": "error", **more}


def command(*arguments: str) -> list[str]:
    """Return a command line of the program."""
    return [sys.executable, "-m", "synth_optimizers.cli", *arguments]


def run_cli(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> CommandResult:
    """Run a command to its end."""
    done = subprocess.run(  # noqa: S603 (the program under test)
        command(*arguments),
        cwd=cwd,
        env=environment(**(env or {})),
        capture_output=True,
        encoding="utf-8",
        timeout=WAIT_TIMEOUT_SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return CommandResult(arguments, done.returncode, done.stdout, done.stderr)


def start_cli(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """Start a command; end it with `end`."""
    pipe = subprocess.PIPE
    return subprocess.Popen(  # noqa: S603 (the program under test)
        command(*arguments), cwd=cwd, env=environment(), stdout=pipe, stderr=pipe, encoding="utf-8"
    )


def end_process(process: subprocess.Popen[str], number: signal.Signals | None = None) -> CommandResult:
    """Signal a process and wait for its end; kill it if it does not end."""
    if number is not None:
        process.send_signal(number)
    try:
        stdout, stderr = process.communicate(timeout=WAIT_TIMEOUT_SECONDS)
    finally:
        process.kill()
    return CommandResult(tuple(process.args[3:]), process.returncode, stdout, stderr)  # type: ignore[arg-type, index]


def normalize_output(text: str, cwd: Path) -> str:
    """Replace the parts of the output that differ between runs."""
    text = text.replace(str(cwd.resolve()), "{DIR}").replace(str(cwd), "{DIR}")
    for pattern, mark in VOLATILE:
        text = pattern.sub(mark, text)
    return text


def assert_snapshot(name: str, ended: CommandResult, cwd: Path) -> None:
    """Compare a command with its snapshot; `UPDATE_SNAPSHOTS=1` rewrites it."""
    told = normalize_output(shlex.join(["synth-optimizers", *ended.arguments]), cwd)
    streams = [("stdout", ended.stdout), ("stderr", ended.stderr)]
    found = f"$ {told}\nexit {ended.code}\n"
    found += "".join(f"--- {kind}\n{normalize_output(text, cwd)}" for kind, text in streams if text)
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOTS.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert path.exists(), f"{path.name} is missing; make it with UPDATE_SNAPSHOTS=1"
    assert found == path.read_text(encoding="utf-8")
    assert "Traceback" not in ended.stderr
