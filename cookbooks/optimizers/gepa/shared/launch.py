"""The starter's end of a server's life: it is started, found well, and ended by its own process id."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

START_SECONDS = 60.0
STOP_SECONDS = 5.0


@contextlib.contextmanager
def served(
    python: str | Path, script: str | Path, *options: str, environ: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start a server, yield its address once it is well, and end it by its own process id.

    It has a session of its own, so that Ctrl-C reaches the optimizer alone, which still needs its container. It ends
    with its standard input, so it does not outlive a starter that was killed.
    """
    command = [str(python), str(script), *options, "--watch-stdin"]
    process = subprocess.Popen(  # noqa: S603 (our own scripts)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=None if environ is None else {**os.environ, **environ},
    )
    # A server that never says its address is ended, which ends the wait for its line too.
    watchdog = threading.Timer(START_SECONDS, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline() if process.stdout else ""
        if "http://" not in line:
            raise RuntimeError(f"{Path(script).name} did not start; is its port taken?")
        url = line.split()[-1]
        _wait_until_well(url.removesuffix("/v1") + "/health")
        watchdog.cancel()
        yield url
    finally:
        watchdog.cancel()
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()


def _wait_until_well(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:  # noqa: S310 (our own address)
                reply.read()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
