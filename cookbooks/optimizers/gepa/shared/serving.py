"""The server's end of its life: its options, where it listens, and how it ends when nobody is left to end it."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return the options that every container has; a cookbook may add its own."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    listening_options(parser)
    parser.add_argument(
        "--policy", choices=("offline", "llm"), default="offline", help="offline needs no key; llm asks a model"
    )
    return parser


def listening_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of everything that listens."""
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free port")
    parser.add_argument("--log", type=Path, metavar="FILE", help="append a line for each request that is worked on")
    parser.add_argument("--watch-stdin", action="store_true", help="end when standard input is closed")


def serve(app: Any, args: argparse.Namespace) -> None:  # noqa: ANN401 (any ASGI application)
    """Serve an application on loopback until the process is ended, and say where."""
    # What only reads briefs or starts servers has no need of it.
    import uvicorn

    listener = socket.create_server(("127.0.0.1", args.port), backlog=512)
    # Connections inherit it. Without it, each reply would wait some 40 ms for the client's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if args.watch_stdin:
        end_with_stdin()
    say_ready(str(getattr(app, "title", "container")), f"http://127.0.0.1:{listener.getsockname()[1]}")
    uvicorn.Server(uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off")).run(sockets=[listener])


def say_ready(name: str, url: str) -> None:
    """Say, as a server, that it listens and where."""
    sys.stdout.write(f"{name} at {url}\n")
    sys.stdout.flush()


def end_with_stdin() -> None:
    """End this process, a server, when its standard input is closed."""

    def watch() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def write_down(log: Path | None, entry: Mapping[str, Any]) -> None:
    """Append a line to a log, where there is one: it says what was really asked of this server."""
    if log is not None:
        with log.open("a", encoding="utf-8") as out:
            out.write(json.dumps(entry) + "\n")


def bill(log: Path | None, request: Mapping[str, Any]) -> None:
    """Append the line of a rollout: its name, its task and a digest of its candidate."""
    if log is not None:
        candidate = json.dumps(request.get("candidate") or {}, sort_keys=True)
        task = request.get("task") or {}
        entry = {"rollout_id": request.get("rollout_id"), "task_id": task.get("task_id")}
        write_down(log, entry | {"candidate": hashlib.sha256(candidate.encode()).hexdigest()[:12]})
