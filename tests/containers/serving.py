"""Command-line flags, fault injection and the server of all test containers."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import threading
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI, HTTPException

FAULTS = ("500", "429", "wrong-row", "nan", "failed-status", "refuse-async", "slow", "crash")


@dataclass
class Faults:
    """Which fault is injected, and into which rollouts."""

    name: str | None
    every: int
    slow_seconds: float
    count: int = 0

    def next_fault(self) -> str | None:
        """Count a rollout and return its fault, or `None`."""
        self.count += 1
        return self.name if self.count % self.every == 0 else None

    async def apply_fault(self) -> str | None:
        """Apply the fault of this rollout; return the fault if it changes the record."""
        fault = self.next_fault()
        if fault == "500":
            raise RuntimeError("the task broke")
        if fault == "429":
            raise HTTPException(status_code=429, detail="too many rollouts", headers={"Retry-After": "0"})
        if fault == "slow":
            await asyncio.sleep(self.slow_seconds)
        if fault == "crash":
            os._exit(1)
        return fault


def arguments(about: str) -> argparse.Namespace:
    """Parse the command line; the environment can name the fault as well."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--mode", choices=["blocking", "async", "both"], default="both", help="submission modes")
    parser.add_argument("--fault", choices=FAULTS, default=os.environ.get("CONTAINER_FAULT") or None)
    parser.add_argument("--every", type=int, default=int(os.environ.get("CONTAINER_FAULT_EVERY") or 1))
    parser.add_argument("--slow-seconds", type=float, default=5.0)
    parser.add_argument("--watch-stdin", action="store_true", help="end when standard input is closed")
    return parser.parse_args()


def faults_from_arguments(args: argparse.Namespace) -> Faults:
    """Return the faults that the command line names."""
    return Faults(name=args.fault, every=max(1, args.every), slow_seconds=args.slow_seconds)


def serve(app: FastAPI, args: argparse.Namespace) -> None:
    """Listen, print one line with the port, and serve until the process ends."""
    if args.watch_stdin:
        threading.Thread(target=_exit_when_stdin_closes, daemon=True).start()
    listener = socket.create_server(("127.0.0.1", args.port), backlog=512)
    sys.stdout.write(f"ready {listener.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])


def _exit_when_stdin_closes() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)
