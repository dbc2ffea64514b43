"""Starts server processes, waits until they are healthy, and ends them by their own process ids."""

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
def run_server(
    python: str | Path, script: str | Path, *options: str, environ: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start a server, yield its address once it is healthy, and end it by its own process id.

    It has its own session, so that Ctrl-C reaches only the optimizer, which still needs its container. It ends when its
    standard input closes, so it does not outlive a killed parent.
    """
    command = [str(python), str(script), *options, "--watch-stdin"]
    process = subprocess.Popen(  # noqa: S603 (scripts of this repository)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=None if environ is None else {**os.environ, **environ},
    )
    # A server that never prints its address is ended, which ends the wait for its line too.
    watchdog = threading.Timer(START_SECONDS, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline() if process.stdout else ""
        if "http://" not in line:
            raise RuntimeError(f"{Path(script).name} did not start")
        url = line.split()[-1]
        _wait_until_healthy(url.removesuffix("/v1") + "/health")
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


def _wait_until_healthy(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:  # noqa: S310 (a loopback address)
                reply.read()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
