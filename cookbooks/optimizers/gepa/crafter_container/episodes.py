"""Plays episodes in worker processes, and caches the generated world of each seed."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

from crafter_container import feedback
from crafter_container.policy import Episode, play
from crafter_container.rules import read_prompt
from crafter_container.world import generate

Json = dict[str, Any]
Result = TypeVar("Result")

PROCESSES = 2


def report(episode: Episode, steps: int) -> Json:
    """Return the report of an episode for the container."""
    told = feedback.details(episode)
    return {
        "objectives": feedback.objectives(episode, steps),
        "feedback": feedback.words(told),
        "details": told,
        "final": feedback.final_state(episode),
    }


def play_report(world: bytes, prompt: str, steps: int) -> Json:
    """Play an episode by the rules of a prompt, and return its report."""
    return report(play(world, read_prompt(prompt), steps), steps)


class WorkerPool:
    """The generated worlds, and the worker processes that play in them."""

    def __init__(self, processes: int = PROCESSES) -> None:
        """Start the worker processes. They end with this process, however it ends."""
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._worlds: dict[int, asyncio.Future[bytes]] = {}
        self.renew()

    def renew(self) -> None:
        """Start new worker processes, for example after one was killed. Worlds are kept."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self._processes, mp_context=context, initializer=_exit_with_parent)
        for _ in range(self._processes):
            self._submit(os.getpid)

    async def world(self, seed: int) -> bytes:
        """Return the world of a seed. Concurrent calls wait for the same generation."""
        if seed not in self._worlds:
            self._worlds[seed] = asyncio.wrap_future(self._submit(generate, seed))
        made = self._worlds[seed]
        try:
            # A cancelled call must not cancel the generation for other callers.
            return await asyncio.shield(made)
        finally:
            if made.done() and (made.cancelled() or made.exception()) and self._worlds.get(seed) is made:
                del self._worlds[seed]

    async def play(self, seed: int, prompt: str, steps: int) -> Json:
        """Play an episode, and return its report."""
        world = await self.world(seed)
        return await asyncio.wrap_future(self._submit(play_report, world, prompt, steps))

    def _submit(self, work: Callable[..., Result], *given: object) -> Future[Result]:
        if self._pool is None:
            raise RuntimeError("the stage is closed")
        return self._pool.submit(work, *given)

    def close(self) -> None:
        """End the worker processes and release their shared resources before this process exits."""
        self._worlds.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
            gc.collect()


def _exit_with_parent() -> None:
    """End this process when its parent ends, even if the parent was killed."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
