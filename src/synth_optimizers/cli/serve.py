"""`gepa service`: the standing service in front of a person."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from synth_optimizers.cli.faults import Refusal
from synth_optimizers.cli.output import say, write_json
from synth_optimizers.cli.words import counted
from synth_optimizers.queue import gepa_serve

__all__ = ["serve"]


def serve(db: Path, config_root: Path | None, *, as_json: bool, quiet: bool, **settings: Any) -> int:  # noqa: ANN401
    """Serve until a signal; the exit code of a service that has drained is 0."""
    root = config_root or Path.cwd()
    if not db.absolute().parent.is_dir():
        raise Refusal(
            f"there is no directory {db.parent} for {db.name}", "Make the directory, or name another file with --db."
        )
    workers = settings["workers"]

    def tell(url: str) -> None:
        if not quiet:
            say(f"service at {url}, database {db}, {counted(workers, 'worker')}, configurations beneath {root}")
        if as_json:
            known = {"url": url, "db": str(db), "workers": workers, "config_root": str(root), "pid": os.getpid()}
            write_json(known)
            sys.stdout.flush()

    with Draining(quiet=quiet) as draining:
        with suppress(KeyboardInterrupt):
            gepa_serve(db, config_root=config_root, on_listening=tell, log=not quiet, **settings)
        with suppress(KeyboardInterrupt):
            draining.told()
    return 0


class Draining:
    """Turns SIGINT, SIGTERM and SIGHUP into the interrupt that the service drains at, and says so."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Draining:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Whoever starts it with nohup wants it to outlive the terminal.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def told(self) -> None:
        """Say that the service has ended."""
        if self.count and not self.quiet:
            say("service stopped; the same command goes on with its runs")

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        name = signal.Signals(number).name
        text = f"{name}: draining, runs under way are saved; again hurries\n" if self.count == 1 else f"{name}: now\n"
        if not self.quiet:
            # Past the buffers: a handler may run in the middle of other output.
            with suppress(OSError):
                os.write(2, text.encode())
        raise KeyboardInterrupt
