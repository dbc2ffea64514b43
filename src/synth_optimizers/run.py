"""`GepaRun`: a configuration that can be carried out."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from threading import Thread
from typing import Any

from synth_optimizers._synth_optimizers import check_run, plan_run, start_run
from synth_optimizers.config import GepaConfig
from synth_optimizers.errors import SynthOptimizerError
from synth_optimizers.handle import RunHandle
from synth_optimizers.preflight import CheckReport, RunPlan
from synth_optimizers.result import GepaRunResult
from synth_optimizers.subscribers import Subscriber

__all__ = ["GepaRun"]


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
        return CheckReport.from_native(check_run(self.config._native, codex_runtime=codex_runtime()))

    def start(self, *, subscribers: Iterable[Subscriber] = ()) -> RunHandle:
        """Carry the run out in the background."""
        return RunHandle(start_run(self.config._native, codex_runtime=codex_runtime()), subscribers)

    def execute(self, *, subscribers: Iterable[Subscriber] = ()) -> GepaRunResult:
        """Carry the run out and return its result.

        The first Ctrl-C finishes what is under way, saves, and raises `KeyboardInterrupt`; the second does not wait. An
        interrupted run goes on with the same call.
        """
        handle = self.start(subscribers=subscribers)
        try:
            return handle.wait()
        except KeyboardInterrupt:
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
        handle.interrupt("interrupted from the keyboard")
        with suppress(KeyboardInterrupt, SynthOptimizerError):
            handle.wait()


async def _waited(handle: RunHandle) -> GepaRunResult:
    """Wait in a thread of its own: those of the event loop's pool are few."""
    import asyncio

    loop = asyncio.get_running_loop()
    end: asyncio.Future[GepaRunResult] = loop.create_future()

    def tell(result: GepaRunResult | None, error: Exception | None) -> None:
        if end.done():
            return
        if result is not None:
            end.set_result(result)
        elif error is not None:
            end.set_exception(error)

    def wait() -> None:
        result, error = None, None
        try:
            result = handle.wait()
        except Exception as problem:
            error = problem
        with suppress(RuntimeError):
            # The loop may be closed by now.
            loop.call_soon_threadsafe(tell, result, error)

    Thread(target=wait, name="synth-optimizers-wait", daemon=True).start()
    return await end


def codex_runtime() -> str | None:
    """Return the codex binary that the extra `codex` installs, if it is there."""
    if importlib.util.find_spec("codex_cli_bin") is None:
        return None
    return str(importlib.import_module("codex_cli_bin").bundled_codex_path())
