"""Calls the user's function: in a thread of this process, on an event loop, or in a worker process.

A `Caller` returns the outcome of one call, and may be able to interrupt a call whose result is no longer needed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Protocol

from .function import CallPlan, Failure, Function, ResultError, describe_exception, read_result
from .values import dump

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOP_CHECK_SECONDS = 2.0
"""An event loop that does not answer for this long is blocked by a function that does not await."""


class Outcome:
    """The end of a call: the parts of a result, or a failure."""

    __slots__ = ("failure", "parts")

    def __init__(self, parts: dict[str, Any] | None = None, failure: Failure | None = None) -> None:
        self.parts = parts
        self.failure = failure


class Call:
    """One call in progress. A caller keeps here what it needs to interrupt it."""

    __slots__ = ("handle", "is_interrupted", "policy", "row", "texts")

    def __init__(self, texts: Mapping[str, str], row: dict[str, Any], policy: Mapping[str, Any] | None = None) -> None:
        self.texts = texts
        self.row = row
        self.policy = policy
        self.handle: Any = None
        self.is_interrupted = False


class Caller(Protocol):
    """Runs calls. `run` is called from several threads at once."""

    can_interrupt: bool
    """Whether `interrupt` makes `run` return. A thread inside of a Python function cannot be called back."""

    def run(self, call: Call) -> Outcome:
        """Call the function and wait for its outcome."""

    def interrupt(self, call: Call) -> None:
        """End a call early, from another thread."""

    def recover(self) -> None:
        """Prepare this thread for the next call after one that was interrupted, or for its end."""

    def close(self) -> None:
        """End everything that still runs."""


def invoke(function: Function, plan: CallPlan, call: Call) -> Outcome:
    """Call the function in this thread and read its result."""
    process = os.getpid()
    try:
        positional, named = plan.arguments(call.texts, call.row, call.policy)
        result = function.call(*positional, **named)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        outcome = Outcome(parts=read_result(result, function.name))
    except ResultError as error:
        outcome = Outcome(failure=Failure(f"{error} ({function.location})"))
    except BaseException as error:
        outcome = Outcome(failure=describe_exception(error))
    if os.getpid() != process:
        # The function forked, and this is the child: only its parent may answer.
        os._exit(0)
    return outcome


async def _awaited(result: Any) -> Any:
    return await result


class ThreadCaller:
    """Calls the function in the thread of the rollout."""

    can_interrupt = False

    def __init__(self, function: Function, plan: CallPlan) -> None:
        self._function = function
        self._plan = plan

    def run(self, call: Call) -> Outcome:
        """Call the function in this thread."""
        return invoke(self._function, self._plan, call)

    def interrupt(self, call: Call) -> None:
        """Leave the call alone: its thread stays inside of the function."""

    def recover(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: threads end with the process."""


class LoopCaller:
    """Runs an `async def` function on one event loop in a thread of its own."""

    can_interrupt = True

    def __init__(self, function: Function, plan: CallPlan) -> None:
        self._function = function
        self._plan = plan
        self._loop = self._start()

    @staticmethod
    def _start() -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()

        def serve() -> None:
            try:
                loop.run_forever()
            finally:
                loop.close()

        threading.Thread(target=serve, name="bridge-async", daemon=True).start()
        return loop

    def run(self, call: Call) -> Outcome:
        """Run the coroutine on the loop and wait for it."""
        call.handle = asyncio.run_coroutine_threadsafe(self._call(call), self._loop)
        if call.is_interrupted:
            call.handle.cancel()
        try:
            outcome: Outcome = call.handle.result()
        except concurrent.futures.CancelledError:
            return Outcome(failure=Failure("the call was interrupted"))
        return outcome

    async def _call(self, call: Call) -> Outcome:
        process = os.getpid()
        try:
            positional, named = self._plan.arguments(call.texts, call.row, call.policy)
            outcome = Outcome(parts=read_result(await self._function.call(*positional, **named), self._function.name))
        except ResultError as error:
            outcome = Outcome(failure=Failure(f"{error} ({self._function.location})"))
        except BaseException as error:
            outcome = Outcome(failure=describe_exception(error))
        if os.getpid() != process:
            os._exit(0)
        return outcome

    def interrupt(self, call: Call) -> None:
        """Cancel the coroutine, and replace the loop if a function blocks it."""
        call.is_interrupted = True
        if call.handle is not None:
            call.handle.cancel()
        answered = threading.Event()
        loop = self._loop
        loop.call_soon_threadsafe(answered.set)

        def check() -> None:
            if not answered.wait(LOOP_CHECK_SECONDS) and self._loop is loop:
                self._loop = self._start()

        threading.Thread(target=check, daemon=True).start()

    def recover(self) -> None:
        """Do nothing: the coroutine was cancelled."""

    def close(self) -> None:
        """Stop the loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)


class ProcessCaller:
    """Calls the function in worker processes, one for each thread that runs calls."""

    can_interrupt = True

    def __init__(self, function: Function, texts: Mapping[str, str], columns: list[str], archive: str) -> None:
        self._name = function.name
        self._start = {
            "target": function.target,
            "factory": function.factory,
            "texts": dict.fromkeys(texts, ""),
            "columns": columns,
            "path": [entry for entry in sys.path if entry != archive],
        }
        self._archive = archive
        self._own = threading.local()
        self._workers: set[Worker] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def run(self, call: Call) -> Outcome:
        """Send the call to the worker of this thread; start one if there is none."""
        worker: Worker | None = getattr(self._own, "worker", None)
        try:
            if worker is None:
                worker = self._own.worker = self._new_worker()
            call.handle = worker
            if call.is_interrupted:
                worker.kill()
            return worker.call(call)
        except (OSError, EOFError, ValueError) as error:
            self._own.worker = None
            return Outcome(failure=Failure(self._death(worker, error)))

    def _new_worker(self) -> Worker:
        with self._lock:
            if self._is_closed:
                raise OSError("the bridge ends")
            worker = Worker(self._archive)
            self._workers.add(worker)
        worker.start(self._start)
        return worker

    def _death(self, worker: Worker | None, error: Exception) -> str:
        if worker is None:
            return f"a worker process for {self._name} cannot be started: {error}"
        code = worker.end()
        with self._lock:
            self._workers.discard(worker)
        if worker.problem:
            return worker.problem
        if code < 0:
            try:
                cause = f"signal {signal.Signals(-code).name}"
            except ValueError:
                cause = f"signal {-code}"
        else:
            cause = f"exit code {code}"
        return f"the worker process ended with {cause} while {self._name} ran"

    def interrupt(self, call: Call) -> None:
        """Kill the worker of the call."""
        call.is_interrupted = True
        if call.handle is not None:
            call.handle.kill()

    def recover(self) -> None:
        """End the worker of this thread."""
        worker: Worker | None = getattr(self._own, "worker", None)
        self._own.worker = None
        if worker is not None:
            worker.kill()
            worker.end()
            with self._lock:
                self._workers.discard(worker)

    def close(self) -> None:
        """Kill all workers."""
        with self._lock:
            self._is_closed = True
            for worker in self._workers:
                worker.kill()


class Worker:
    """A process that calls the function. It ends when this process ends, because its pipe closes."""

    def __init__(self, archive: str) -> None:
        self.problem: str | None = None
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, archive, "worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def start(self, start: dict[str, Any]) -> None:
        """Load the function."""
        self._send(start)
        answer = self._receive()
        if "problem" in answer:
            self.problem = str(answer["problem"])
            raise EOFError

    def call(self, call: Call) -> Outcome:
        """Call the function once."""
        self._send({"texts": dict(call.texts), "row": call.row, "policy": call.policy})
        answer = self._receive()
        failure = answer.get("failure")
        return Outcome(answer.get("parts"), Failure(*failure) if failure else None)

    def kill(self) -> None:
        """Kill the process; a call that waits for it fails."""
        self._process.kill()

    def end(self) -> int:
        """Wait until the process has ended and return its exit code."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue
        try:
            return self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _send(self, message: dict[str, Any]) -> None:
        if self._process.stdin is None:
            raise EOFError
        write_message(self._process.stdin, message)

    def _receive(self) -> dict[str, Any]:
        if self._process.stdout is None:
            raise EOFError
        return read_message(self._process.stdout)


def write_message(stream: Any, message: dict[str, Any]) -> None:
    """Write a JSON message with its length before it."""
    body = dump(message).encode()
    stream.write(struct.pack(">I", len(body)) + body)
    stream.flush()


def read_message(stream: Any) -> dict[str, Any]:
    """Read a message. Raises `EOFError` at the end of the stream."""
    head = stream.read(4)
    if len(head) < 4:
        raise EOFError
    (length,) = struct.unpack(">I", head)
    body = stream.read(length)
    if len(body) < length:
        raise EOFError
    found: dict[str, Any] = json.loads(body)
    return found
