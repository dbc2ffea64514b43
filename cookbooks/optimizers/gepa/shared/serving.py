"""The server side of a server process: its options, its address, and its exit when its parent is gone."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def arguments(description: str | None, *more_policies: str, has_log: bool = True) -> argparse.ArgumentParser:
    """Return the options that every container has; a cookbook may add its own, and further policies."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    listening_options(parser, has_log=has_log)
    parser.add_argument(
        "--policy",
        choices=("offline", *more_policies, "llm"),
        default="offline",
        help="only llm needs a key: it asks a model server",
    )
    return parser


def listening_options(parser: argparse.ArgumentParser, *, has_log: bool = True) -> None:
    """Add the options of every server. The bridge has no log of requests."""
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free port")
    if has_log:
        parser.add_argument("--log", type=Path, metavar="FILE", help="append a line for each request that is worked on")
    parser.add_argument("--watch-stdin", action="store_true", help="end when standard input is closed")


def serve(app: Any, args: argparse.Namespace) -> None:  # noqa: ANN401 (any ASGI application)
    """Serve an application on loopback until the process ends, and print its address."""
    # Imported here, because modules that only parse briefs or start servers do not need it.
    import uvicorn

    with require_free_port(args.port):
        listener = socket.create_server(("127.0.0.1", args.port), backlog=512)
    # Connections inherit the option. Without it, each reply would wait some 40 ms for the client's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if args.watch_stdin:
        exit_when_stdin_closes()
    print_ready(str(getattr(app, "title", "container")), f"http://127.0.0.1:{listener.getsockname()[1]}")
    uvicorn.Server(uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off")).run(sockets=[listener])


@contextlib.contextmanager
def require_free_port(port: int) -> Iterator[None]:
    """Exit with a message if a port is in use."""
    try:
        yield
    except OSError as error:
        raise SystemExit(f"port {port}: {error.strerror}") from error


def print_ready(name: str, url: str) -> None:
    """Print the name and the address of a server that listens."""
    sys.stdout.write(f"{name} at {url}\n")
    sys.stdout.flush()


def exit_when_stdin_closes() -> None:
    """End this server process when its standard input is closed."""

    def watch() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def append_log(log: Path | None, entry: Mapping[str, Any]) -> None:
    """Append a line to a log, if there is one; the log shows every call that reached this server."""
    if log is not None:
        with log.open("a", encoding="utf-8") as out:
            out.write(json.dumps(entry) + "\n")


def log_rollout(log: Path | None, request: Mapping[str, Any]) -> None:
    """Log a rollout: its id, its task and a digest of its candidate."""
    if log is not None:
        candidate = json.dumps(request.get("candidate") or {}, sort_keys=True)
        task = request.get("task") or {}
        entry = {"rollout_id": request.get("rollout_id"), "task_id": task.get("task_id")}
        append_log(log, entry | {"candidate": hashlib.sha256(candidate.encode()).hexdigest()[:12]})
