"""`gepa run` and `gepa resume`: carries a run out in front of a person."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from click.exceptions import Exit

from synth_optimizers.cli.faults import Refusal, fault_of, show
from synth_optimizers.cli.output import write_json, write_text
from synth_optimizers.cli.progress import Progress
from synth_optimizers.cli.session import CLOCK, Signals, announce, follow
from synth_optimizers.cli.summary import closing
from synth_optimizers.cli.view import view_for
from synth_optimizers.errors import CancelledError, OptimizerIoError, SynthOptimizerError
from synth_optimizers.run import GepaRun

if TYPE_CHECKING:
    from synth_optimizers.handle import RunHandle
    from synth_optimizers.subscribers import Subscriber

__all__ = ["carry_out", "load", "trackers_for"]


def load(config: Path, overrides: Sequence[str]) -> GepaRun:
    """Read a configuration file; one that cannot be read is a matter of usage."""
    try:
        return GepaRun.from_toml(config, overrides)
    except OptimizerIoError as error:
        fault = fault_of(error)
        raise Refusal(fault.message, fault.hint, fault.detail) from error


def carry_out(run: GepaRun, *, as_json: bool, quiet: bool, subscribers: Sequence[Subscriber] = ()) -> int:
    """Carry a run out, show it, and return the exit code."""
    if not quiet:
        announce(run.config.warnings)
    begun = time.time()
    settings = run.config.to_dict()
    progress = Progress(container_url=settings["container"]["url"])
    error: SynthOptimizerError | None = None
    with Signals() as signals:
        waiting = Waiting()
        view = view_for(progress, settings["gepa"], quiet=quiet, waiting=waiting.look)
        handle = waiting.handle = run.start(subscribers=subscribers)
        progress.run_id = handle.run_id
        signals.attach(handle.interrupt, view)
        try:
            view.start()
            follow(handle.iter_events(), progress, view, since=begun, pulse=signals.pulse)
            result = handle.wait()
        except SynthOptimizerError as problem:
            error = problem
        finally:
            # A run that was refused has only the story of the process before.
            has_story = progress.latest >= begun - CLOCK or (error is None and progress.events > 0)
            view.close(closing(progress, handle.run_dir, time.time()) if has_story else [])
    if error is not None:
        return _end_badly(error, signals, as_json=as_json, is_told=has_story and not quiet)
    if as_json:
        write_json(result.to_dict())
    else:
        write_text(f"artifacts: {handle.run_dir}")
    return 0


def trackers_for(names: Sequence[str], run: GepaRun) -> list[Subscriber]:
    """Return the subscribers behind the names of `--track`; those that keep a configuration get that of the run."""
    if not names:
        return []
    from synth_optimizers.tracking import TRACKERS, subscriber
    from synth_optimizers.tracking.forward import ForwardingSubscriber

    found = []
    for name in names:
        kind = TRACKERS.get(name)
        keeps_config = isinstance(kind, type) and issubclass(kind, ForwardingSubscriber)
        found.append(subscriber(name, config=run.config.to_dict()) if keeps_config else subscriber(name))
    return found


def _end_badly(error: SynthOptimizerError, signals: Signals, *, as_json: bool, is_told: bool) -> int:
    fault = fault_of(error)
    by_signal = signals.exit_code if isinstance(error, CancelledError) else None
    # Whoever pressed Ctrl-C has read in the summary how to go on.
    if by_signal is None or as_json or not is_told:
        # A reader of stdout that has left does not make the end a good one.
        with suppress(Exit, OSError):
            show(fault, as_json=as_json)
    return fault.exit_code if by_signal is None else by_signal


class Waiting:
    """A look at the answers that wait for their turn; not more than once a second."""

    def __init__(self) -> None:
        self.handle: RunHandle | None = None
        self._looked = 0.0
        self._found: int | None = None

    def look(self) -> int | None:
        """Return how many there are, if that is known."""
        now = time.monotonic()
        if self.handle is not None and now - self._looked >= 1.0:
            self._looked = now
            # A view goes on without the number.
            self._found = None
            with suppress(Exception):
                self._found = self.handle.status().rollouts_waiting
        return self._found
