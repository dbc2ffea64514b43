"""`GepaRun`: a configuration that can be carried out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from threading import Thread
from typing import Any

from synth_optimizers._synth_optimizers import plan_run, start_run
from synth_optimizers.config import GepaConfig
from synth_optimizers.errors import SynthOptimizerError
from synth_optimizers.extras import codex_runtime
from synth_optimizers.handle import RunHandle, Subscriber
from synth_optimizers.preflight import CheckReport, RunPlan, check_native
from synth_optimizers.result import GepaRunResult


class GepaRun:
    """A run that can be carried out, or gone on with: the same run id in the same output directory is the same run.

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
        cls, path: str | PathLike[str], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> GepaRun:
        """Read a TOML file; every problem is raised at once. See `GepaConfig.from_toml`."""
        return cls(GepaConfig.from_toml(path, overrides, environ), Path(path))

    @classmethod
    def from_config(
        cls, mapping: Mapping[str, Any], overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> GepaRun:
        """Read a mapping of the same shape as the file."""
        return cls(GepaConfig.from_mapping(mapping, overrides, environ))

    @classmethod
    def from_run_dir(cls, run_dir: str | PathLike[str]) -> GepaRun:
        """Go on with the run in a directory, with the configuration that it was begun with."""
        return cls(GepaConfig.from_run_dir(run_dir))

    def plan(self) -> RunPlan:
        """Return what the run would take: rows, rollouts, proposals and cost. Nobody is contacted."""
        return RunPlan.from_native(plan_run(self.config._native))

    def check(self) -> CheckReport:
        """Return everything that stands in the way of the run: output, cache, container, task, proposer and budget.

        Container and proposer are really asked, and started where the configuration says so; nothing is paid for.
        """
        return check_native(self.config._native)

    def start(self, *, subscribers: Iterable[Subscriber] = ()) -> RunHandle:
        """Carry the run out in the background."""
        return RunHandle(start_run(self.config._native, codex_runtime=codex_runtime()), subscribers)

    def execute(self, *, subscribers: Iterable[Subscriber] = ()) -> GepaRunResult:
        """Carry the run out and return its result.

        The first Ctrl-C finishes what is under way, saves, and raises `KeyboardInterrupt`; the second does not wait.
        Whatever else a signal handler raises saves the run as well. An interrupted run goes on with the same call.
        """
        handle = None
        try:
            handle = self.start(subscribers=subscribers)
            return handle.wait()
        except BaseException:
            # Whatever a signal handler raises: nobody else can reach the run.
            if handle is not None:
                _save(handle)
            raise

    async def aexecute(self, *, subscribers: Iterable[Subscriber] = ()) -> GepaRunResult:
        """Carry the run out without holding up the event loop. A cancelled task interrupts and saves the run."""
        # Those who have no event loop need not wait for its import.
        import asyncio

        handle = self.start(subscribers=subscribers)
        try:
            return await _waited(handle)
        except asyncio.CancelledError:
            handle.interrupt("the task was cancelled")
            with suppress(SynthOptimizerError):
                await asyncio.shield(_waited(handle))
            raise


def _save(handle: RunHandle) -> None:
    """Interrupt a run and wait until it is saved; with each further Ctrl-C it is told again."""
    while not handle.is_over:
        handle.interrupt("interrupted by its caller")
        with suppress(KeyboardInterrupt, SynthOptimizerError):
            handle.wait()


async def _waited(handle: RunHandle) -> GepaRunResult:
    """Wait in a thread of its own: those of the event loop's pool are few."""
    import asyncio
    from concurrent.futures import Future

    end: Future[GepaRunResult] = Future()
    # A task that is cancelled leaves the thread to its wait.
    end.set_running_or_notify_cancel()

    def wait() -> None:
        try:
            end.set_result(handle.wait())
        except Exception as error:
            end.set_exception(error)

    Thread(target=wait, name="synth-optimizers-wait", daemon=True).start()
    return await asyncio.wrap_future(end)
