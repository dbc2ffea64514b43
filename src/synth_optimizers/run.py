"""`GepaRun`: executes, plans or checks a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from threading import Thread
from typing import Any

from synth_optimizers._synth_optimizers import plan_run, start_run
from synth_optimizers.config import GepaConfig, Overrides
from synth_optimizers.errors import SynthOptimizerError
from synth_optimizers.extras import codex_runtime
from synth_optimizers.handle import RunHandle, Subscriber
from synth_optimizers.preflight import CheckReport, RunPlan, check_native
from synth_optimizers.result import GepaRunResult


class GepaRun:
    """A run to execute or resume. The same run id in the same output directory is the same run.

    >>> result = GepaRun.from_toml("gepa.toml").execute()
    >>> print(result.best_candidate)
    """

    def __init__(self, config: GepaConfig, config_path: Path | None = None) -> None:
        self.config = config
        self.config_path = config_path

    def __repr__(self) -> str:
        return f"GepaRun(config_path={str(self.config_path)!r})" if self.config_path else "GepaRun()"

    @classmethod
    def from_toml(
        cls, path: str | PathLike[str], overrides: Overrides = (), environ: Mapping[str, str] | None = None
    ) -> GepaRun:
        """Load a TOML file; one exception reports every problem. See `GepaConfig.from_toml`."""
        return cls(GepaConfig.from_toml(path, overrides, environ), Path(path))

    @classmethod
    def from_config(
        cls, mapping: Mapping[str, Any], overrides: Overrides = (), environ: Mapping[str, str] | None = None
    ) -> GepaRun:
        """Load a mapping of the same shape as the file."""
        return cls(GepaConfig.from_mapping(mapping, overrides, environ))

    @classmethod
    def from_run_dir(cls, run_dir: str | PathLike[str]) -> GepaRun:
        """Load the run in a directory with its original configuration, to resume it."""
        return cls(GepaConfig.from_run_dir(run_dir))

    def plan(self, splits: Mapping[str, Sequence[str]] | None = None) -> RunPlan:
        """Return the plan of the run: rows, rollouts, proposals and cost. No container or proposer is contacted.

        `splits` are the task ids by split that the container names, for a configuration that leaves its rows to it.
        """
        return RunPlan.from_native(plan_run(self.config._native, splits=splits))

    def check(self) -> CheckReport:
        """Return every preflight finding: output, cache, container, task, proposer and budget.

        This contacts the container and the proposer, and starts them if the configuration says so. It causes no cost.
        """
        return check_native(self.config._native)

    def start(self, *, subscribers: Iterable[Subscriber] = ()) -> RunHandle:
        """Execute the run in the background."""
        return RunHandle(start_run(self.config._native, codex_runtime=codex_runtime()), subscribers)

    def execute(self, *, subscribers: Iterable[Subscriber] = ()) -> GepaRunResult:
        """Execute the run and return its result.

        The first Ctrl-C finishes calls in flight, saves, and raises `KeyboardInterrupt`; the second does not wait. Any
        other exception of a signal handler saves the run as well. The same call resumes an interrupted run.
        """
        handle = None
        try:
            handle = self.start(subscribers=subscribers)
            return handle.wait()
        except BaseException:
            # Any exception of a signal handler: the caller has no handle to save the run with.
            if handle is not None:
                _interrupt_and_wait(handle)
            raise

    async def aexecute(self, *, subscribers: Iterable[Subscriber] = ()) -> GepaRunResult:
        """Execute the run without blocking the event loop. Cancelling the task interrupts and saves the run."""
        # Imported here, because most callers do not need it.
        import asyncio

        handle = self.start(subscribers=subscribers)
        try:
            return await _wait_in_thread(handle)
        except asyncio.CancelledError:
            handle.interrupt("the task was cancelled")
            # The cancellation takes precedence.
            with suppress(SynthOptimizerError):
                await asyncio.shield(_wait_in_thread(handle))
            raise


def _interrupt_and_wait(handle: RunHandle) -> None:
    """Interrupt a run and wait until it is saved, however it ends. Each further Ctrl-C sends the interrupt again."""
    while not handle.is_done:
        handle.interrupt("interrupted by the caller")
        with suppress(KeyboardInterrupt, SynthOptimizerError):
            handle.wait()


async def _wait_in_thread(handle: RunHandle) -> GepaRunResult:
    """Wait in a dedicated thread, because the event loop's pool has few."""
    import asyncio
    from concurrent.futures import Future

    outcome: Future[GepaRunResult] = Future()
    # A cancelled task must not cancel the future: the thread still sets it.
    outcome.set_running_or_notify_cancel()

    def wait() -> None:
        try:
            outcome.set_result(handle.wait())
        except Exception as error:
            outcome.set_exception(error)

    Thread(target=wait, name="synth-optimizers-wait", daemon=True).start()
    return await asyncio.wrap_future(outcome)
