"""The container: the routes of the contract, and the thread that serves them."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import re
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .archive import archive
from .calls import Call, Caller, LoopCaller, ProcessCaller, ThreadCaller
from .connection import Answer, Request, Response, listen
from .errors import BridgeError, suggestion
from .rollouts import RefusedError, Rollout, Rollouts, request_digest, state_of
from .store import Store
from .task import BridgeTask, load_task
from .values import dump

if TYPE_CHECKING:
    from types import TracebackType

DEFAULT_JOBS = 8
DEFAULT_TIMEOUT_SECONDS = 600.0
ROLLOUT_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
OPEN_SECONDS = 30.0


class Routes:
    """Answers requests. Runs on the event loop of the server."""

    def __init__(self, task: BridgeTask, rollouts: Rollouts, token: str | None, *, remembers_rollouts: bool) -> None:
        self._task = task
        self._rollouts = rollouts
        self._token = token.encode() if token else None
        self._documents = {
            "/metadata": _json(task.metadata(remembers_rollouts=remembers_rollouts)),
            "/program": _json(task.program()),
            "/task_info": _json(task.task_info()),
            "/taskset": _json(task.taskset_document()),
        }
        self._documents["/info"] = self._documents["/metadata"]

    def handle(self, request: Request) -> Answer:
        """Answer one request."""
        try:
            return self._route(request)
        except RefusedError as error:
            return refusal(error)
        except sqlite3.Error as error:
            # Nothing was run, because nothing could be remembered.
            return refusal(RefusedError(503, f"the state file cannot be read: {error}", retry_after=5))
        except Exception as error:
            return refuse(500, f"{type(error).__name__}: {error}")

    def _route(self, request: Request) -> Answer:
        method, path = request.method, request.path
        if path == "/health":
            return _json({"status": "ok", **self._rollouts.counts()})
        if self._token is not None:
            given = request.headers.get("authorization", "").encode("utf-8", "replace")
            if not hmac.compare_digest(given, b"Bearer " + self._token):
                raise RefusedError(401, "the token is missing or wrong")
        if path in self._documents:
            return self._documents[path] if method == "GET" else _not_allowed(method, path)
        parts = path.strip("/").split("/")
        if parts[0] in ("rollouts", "rollout"):
            if len(parts) == 1:
                return self._submit(_body(request)) if method == "POST" else _not_allowed(method, path)
            if len(parts) == 3 and parts[2] == "terminate":
                return self._terminate(parts[1], request) if method == "POST" else _not_allowed(method, path)
            if len(parts) == 2 or (len(parts) == 3 and parts[2] == "state"):
                return self._look(parts[1], is_state=len(parts) == 3) if method == "GET" else _not_allowed(method, path)
        if path == "/taskset/tasks":
            return self._tasks(_body(request)) if method == "POST" else _not_allowed(method, path)
        raise RefusedError(404, f"there is no route {path}")

    def _tasks(self, request: dict[str, Any]) -> Response:
        ids = request.get("task_ids")
        if not isinstance(ids, list) or not all(isinstance(name, str) for name in ids):
            raise RefusedError(422, "task_ids must be a list of texts")
        tasks = self._task.taskset.tasks
        split = request.get("split")
        unknown = [name for name in ids if name not in tasks or (split and tasks[name].split != split)]
        if unknown:
            raise RefusedError(422, f"unknown task ids in split {split!r}: {unknown[:10]}")
        return _json({"tasks": [tasks[name].served for name in ids]})

    def _submit(self, request: dict[str, Any]) -> Answer:
        rollout_id = request.get("rollout_id")
        if not isinstance(rollout_id, str) or not ROLLOUT_ID.fullmatch(rollout_id):
            raise RefusedError(422, f"rollout_id is {str(rollout_id)[:80]!r}, not 1 to 128 letters, digits and ._-")
        mode = request.get("submission_mode", "sync")
        if mode not in ("sync", "async", "blocking"):
            raise RefusedError(422, f"submission_mode is {str(mode)[:80]!r}, not sync or async")
        texts = self._texts(request)
        task = self._row(request)
        policy = request.get("policy")
        if policy is not None and not isinstance(policy, dict):
            raise RefusedError(422, "policy is not an object")
        call = Call(texts, task.row, policy)
        is_awaited = mode != "async"
        found = self._rollouts.submit(rollout_id, request_digest(request), task.task_id, call, is_awaited=is_awaited)
        if isinstance(found, bytes):
            return Response(200, found)
        return self._wait(found) if is_awaited else Response(200, state_of(rollout_id, found))

    def _texts(self, request: dict[str, Any]) -> dict[str, str]:
        given = request.get("candidate")
        if not isinstance(given, dict):
            raise RefusedError(422, "candidate is missing: it must contain every text")
        for name in self._task.texts:
            if not isinstance(given.get(name), str):
                raise RefusedError(422, f"candidate.{name} is missing or not a text")
        for name in given:
            if name not in self._task.texts:
                hint = suggestion(name, self._task.texts, "Texts")
                raise RefusedError(422, f"candidate has the unknown text {name!r}. {hint}")
        return dict(given)

    def _row(self, request: dict[str, Any]) -> Any:
        given = request.get("task")
        if not isinstance(given, dict) or not isinstance(given.get("task_id"), str):
            raise RefusedError(422, "task.task_id is missing: it must name a row of POST /taskset/tasks")
        task = self._task.taskset.tasks.get(given["task_id"])
        if task is None:
            raise RefusedError(422, f"task.task_id names the unknown row {given['task_id'][:80]!r}")
        version = task.served.get("row_version")
        if version is not None and given.get("row_version", version) != version:
            raise RefusedError(422, f"row {task.task_id!r} has changed since the run read it")
        return task

    async def _wait(self, rollout: Rollout) -> Response:
        await asyncio.shield(rollout.done)
        if rollout.refused is not None:
            return refusal(rollout.refused)
        return Response(200, rollout.record or b"{}")

    def _look(self, rollout_id: str, *, is_state: bool) -> Response:
        found = self._rollouts.find(rollout_id)
        if found is None:
            raise RefusedError(404, f"unknown_rollout:{rollout_id}")
        if is_state or isinstance(found, Rollout):
            return Response(200, state_of(rollout_id, found))
        return Response(200, found)

    def _terminate(self, rollout_id: str, request: Request) -> Response:
        reason = _body(request).get("reason") if request.body else None
        record = self._rollouts.terminate(rollout_id, reason if isinstance(reason, str) else "")
        if record is None:
            raise RefusedError(404, f"unknown_rollout:{rollout_id}")
        return Response(200, state_of(rollout_id, record))


def _body(request: Request) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A web page of another site cannot send this type without asking first.
        raise RefusedError(415, f"the content-type is {kind!r}, not application/json")
    try:
        found = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RefusedError(422, "the body is not a JSON object")
    return found


def _not_allowed(method: str, path: str) -> Response:
    return refuse(405, f"{path} does not support {method}")


def _json(value: object) -> Response:
    return Response(200, dump(value).encode())


def refuse(status: int, detail: str) -> Response:
    """Return an error response."""
    return Response(status, dump({"detail": detail}).encode("utf-8", "replace"))


def refusal(error: RefusedError) -> Response:
    """Return the response to a refused request."""
    headers = f"retry-after: {error.retry_after}\r\n" if error.retry_after is not None else ""
    return refuse(error.status, error.detail)._replace(headers=headers)


class Server:
    """Serves a task from threads of this process, from `open` until `close`."""

    def __init__(
        self,
        task: BridgeTask,
        *,
        jobs: int = DEFAULT_JOBS,
        processes: bool = False,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        state: str | os.PathLike[str] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
    ) -> None:
        if not 1 <= jobs <= 1024:
            raise BridgeError("option_invalid", f"--jobs is {jobs}", "Write a number from 1 to 1024.")
        if not 0 <= port <= 65535:
            raise BridgeError("option_invalid", f"--port is {port}", "Write a number up to 65535; 0 takes a free port.")
        if not timeout >= 0:
            raise BridgeError("option_invalid", f"--timeout is {timeout}", "Write seconds; 0 means no limit.")
        self.task = task
        self._caller = _caller(task, processes=processes)
        self._options = (jobs, timeout, token)
        self._state = Path(state) if state is not None else None
        self._address = (host, port)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._channel: socket.socket | None = None
        self.url = ""

    def bind(self) -> str:
        """Take the port and return the URL. Requests wait until `open`; no file is written before it."""
        if self._channel is None:
            channel = self._channel = _bind(*self._address)
            host, port = channel.getsockname()[:2]
            self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            if hasattr(os, "register_at_fork"):
                # A child that outlives this process must not keep its port.
                os.register_at_fork(after_in_child=lambda: _close_quietly(channel))
        return self.url

    def open(self) -> str:
        """Start to serve and return the URL."""
        self.bind()
        try:
            store = Store(self._state)
        except BridgeError:
            self.close()
            raise
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(store, self._channel, ready), name="bridge-server", daemon=True
        )
        self._thread.start()
        if not ready.wait(OPEN_SECONDS) or self._failure is not None:
            raise BridgeError("serve_failed", f"the server did not start: {self._failure}", "Try again.")
        return self.url

    def _serve(self, store: Store, channel: socket.socket, ready: threading.Event) -> None:
        try:
            asyncio.run(self._main(store, channel, ready))
        except BaseException as error:
            self._failure = error
            ready.set()
        finally:
            store.close()

    async def _main(self, store: Store, channel: socket.socket, ready: threading.Event) -> None:
        jobs, timeout, token = self._options
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        rollouts = Rollouts(self.task.function.name, self._caller, store, jobs, timeout)
        routes = Routes(self.task, rollouts, token, remembers_rollouts=store.is_durable)
        server, connections = await listen(routes.handle, refuse, channel)
        ready.set()
        await self._stop.wait()
        server.close()
        rollouts.close()
        for connection in list(connections):
            connection.close()

    def close(self) -> None:
        """Stop to serve. Functions in threads run on, and their results are lost."""
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                return
        if self._thread is not None:
            self._thread.join(OPEN_SECONDS)
        elif self._channel is not None:
            self._channel.close()
        self._channel = None

    def __enter__(self) -> str:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(
    function: str | Callable[..., Any],
    rows: str | Iterable[Mapping[str, Any]],
    texts: Mapping[str, str],
    *,
    jobs: int = DEFAULT_JOBS,
    processes: bool = False,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    state: str | os.PathLike[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    **task: Any,
) -> Server:
    """Return a server of a function and rows. As a context manager it serves, and its value is the URL.

    The function runs in threads of this process, so one that is defined in a notebook works. With `processes` it runs
    in worker processes, which need a function in a file. With `state`, rollout ids are remembered in that file across
    restarts. The other options are those of `load_task`: `labels`, `heldout`, `split_column`, `seed`, `name` and more.
    """
    loaded = load_task(function, rows, texts, **task)
    return Server(
        loaded, jobs=jobs, processes=processes, timeout=timeout, state=state, host=host, port=port, token=token
    )


def _caller(task: BridgeTask, *, processes: bool) -> Caller:
    if not processes:
        return (
            LoopCaller(task.function, task.plan) if task.function.is_async else ThreadCaller(task.function, task.plan)
        )
    if task.function.target is None:
        raise BridgeError(
            "function_without_file",
            f"{task.function.name} is not in a file, so another process cannot load it",
            "Move it into a Python file, or use threads.",
        )
    return ProcessCaller(task.function, task.texts, task.taskset.columns, str(archive()))


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        channel = socket.socket(family[0], socket.SOCK_STREAM)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        channel.bind(family[4])
        channel.listen(1024)
    except OSError as error:
        raise BridgeError(
            "address_in_use" if port else "address_invalid",
            f"{host}:{port} cannot be served: {error.strerror or error}",
            "Choose another --host or --port; --port 0 takes a free one.",
        ) from error
    channel.setblocking(False)
    return channel


def _close_quietly(channel: socket.socket) -> None:
    try:
        channel.close()
    except OSError:
        return
