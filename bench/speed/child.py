"""Runs a command and returns what it has used: processor time, bytes written, memory and wall time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY_SECONDS = 0.01
TERMINAL_ROWS, TERMINAL_COLUMNS = 40, 120


@dataclass
class Used:
    """What a process has used from its start to its end."""

    wall_seconds: float
    cpu_seconds: float
    written_bytes: int
    peak_mb: float
    output: str

    def last_json(self) -> dict[str, Any]:
        """Return the last line of the output, which is a JSON object."""
        found: dict[str, Any] = json.loads(self.output.strip().splitlines()[-1])
        return found


@contextlib.contextmanager
def output(is_terminal: bool) -> Iterator[tuple[int, list[bytes]]]:
    """Yield a file descriptor for the output of a process, and the parts that were read when the block has ended."""
    parts: list[bytes] = []
    if not is_terminal:
        with tempfile.TemporaryFile() as file:
            yield file.fileno(), parts
            file.seek(0)
            parts.append(file.read())
        return
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", TERMINAL_ROWS, TERMINAL_COLUMNS, 0, 0))

    def read() -> None:
        # Reading fails when the last process has closed its side.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 65_536):
                parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    yield theirs, parts
    os.close(theirs)
    reader.join()
    os.close(ours)


class PeakMemory:
    """Reads the peak memory of a process while it runs. What `wait4` says begins with the memory of this process."""

    def __init__(self, pid: int) -> None:
        self.status = Path(f"/proc/{pid}/status")
        self.peak_mb = 0.0
        self.ended = threading.Event()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self) -> None:
        """Read until the process has ended."""
        while found := re.search(r"^VmHWM:\s*(\d+) kB$", self.status.read_text(encoding="ascii"), re.MULTILINE):
            self.peak_mb = int(found[1]) / 1024
            if self.ended.wait(MEMORY_SECONDS):
                return

    def stop(self) -> float:
        """Return the peak in megabytes."""
        self.ended.set()
        self.reader.join()
        return self.peak_mb


def run(command: Sequence[str], cwd: Path, *, is_terminal: bool = False) -> Used:
    """Run a command that must succeed, its output in a file or on a terminal of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")}
    environment |= {"TERM": "xterm-256color"} if is_terminal else {}
    with output(is_terminal) as (descriptor, parts), tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        out, error = (descriptor, descriptor if is_terminal else errors)
        child = subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=error, env=environment)
        peak = PeakMemory(child.pid)
        try:
            # The process has ended and can still be asked.
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        except BaseException:
            child.kill()
            raise
        finally:
            wall = time.perf_counter() - began
            peak_mb = peak.stop()
        counters = Path(f"/proc/{child.pid}/io").read_text(encoding="ascii")
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        complaint = errors.read().decode(errors="replace")
    text = b"".join(parts).decode(errors="replace")
    if child.returncode:
        sys.exit(f"{' '.join(command)}: exit code {child.returncode}\n{text[-2000:]}\n{complaint[-4000:]}")
    (written,) = re.findall(r"^wchar: (\d+)$", counters, re.MULTILINE)
    return Used(wall, used.ru_utime + used.ru_stime, int(written), peak_mb, text)


def bytes_below(directory: Path) -> int:
    """Return the size of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
