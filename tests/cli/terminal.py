"""Runs a command on a terminal of a given size."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

from support.polling import WAIT_TIMEOUT_SECONDS

from cli.commands import command, environment

ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9])")


class Terminal:
    """A process on a pseudo-terminal; all its output is kept."""

    def __init__(
        self, *arguments: str, columns: int, cwd: Path, rows: int = 40, ignore_hangup: bool = False, **env: str
    ) -> None:
        self.columns = columns
        self.main, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(  # noqa: S603 (the program under test)
            command(*arguments),
            cwd=cwd,
            env=environment(TERM="xterm-256color", **env),
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            preexec_fn=_set_controlling_terminal_ignoring_hangup if ignore_hangup else _set_controlling_terminal,
        )
        os.close(child)
        self.raw = b""

    def read_until(self, is_so: Callable[[str], bool], patience: float = WAIT_TIMEOUT_SECONDS) -> None:
        """Read until the output satisfies a condition."""
        deadline = time.monotonic() + patience
        while not is_so(self.text):
            assert time.monotonic() < deadline, f"the expected output did not appear: {self.text[-2000:]}"
            if not self._read(0.1) and self.process.poll() is not None:
                raise AssertionError(f"it ended before: {self.text[-2000:]}")

    def press_ctrl_c(self) -> None:
        """Send Ctrl-C to the process."""
        os.write(self.main, b"\x03")

    def end(self, patience: float = WAIT_TIMEOUT_SECONDS) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + patience
        try:
            while self.process.poll() is None:
                assert time.monotonic() < deadline, f"the process did not end: {self.text[-2000:]}"
                self._read(0.1)
            while self._read(0.1):
                pass
            return self.process.returncode
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.main)

    def close(self) -> int:
        """Close the terminal while the process runs, and return its exit code."""
        os.close(self.main)
        try:
            return self.process.wait(WAIT_TIMEOUT_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()

    @property
    def text(self) -> str:
        """The output, without colours and cursor movements."""
        return ESCAPE.sub("", self.raw.decode(errors="replace"))

    @property
    def lines(self) -> list[str]:
        """The output, line by line."""
        return re.split(r"[\r\n]+", self.text)

    def _read(self, patience: float) -> bool:
        ready, _, _ = select.select([self.main], [], [], patience)
        if not ready:
            return False
        try:
            found = os.read(self.main, 65536)
        except OSError:
            return False
        self.raw += found
        return bool(found)


def _set_controlling_terminal_ignoring_hangup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _set_controlling_terminal()


def _set_controlling_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
