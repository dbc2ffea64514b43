"""Starts the container and the reflector of `examples/ticket_router` for tests, and writes configs that name them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "ticket_router"
START_SECONDS = 60.0
STOP_SECONDS = 5.0


@dataclass(frozen=True)
class Example:
    """The servers of the example that are running, and what they have written down."""

    container_url: str
    reflector_url: str
    rollout_log: Path
    turn_log: Path

    def rollouts(self) -> list[dict[str, Any]]:
        """Return every rollout that reached the container: rollout_id, task_id, prompt (a digest) and failed."""
        return _lines(self.rollout_log)

    def turns(self) -> list[dict[str, Any]]:
        """Return every turn that reached the reflector: rows and proposals."""
        return _lines(self.turn_log)


@contextlib.contextmanager
def serve_example(log_dir: Path, *, delay: float = 0.0, fail_every: int = 0) -> Iterator[Example]:
    """Start both servers on free ports of loopback, and end them by their own process ids.

    `delay` is how many seconds each rollout takes; about one rollout in `fail_every` ends with HTTP 500.
    """
    rollout_log, turn_log = log_dir / "rollouts.jsonl", log_dir / "turns.jsonl"
    container = ["container.py", "--delay", str(delay), "--fail-every", str(fail_every), "--log", str(rollout_log)]
    with _served(container) as container_url, _served(["reflector.py", "--log", str(turn_log)]) as reflector_url:
        yield Example(container_url, reflector_url, rollout_log, turn_log)


def example_config(directory: Path, example: Example, **changes: object) -> Path:
    """Write the example's `gepa.toml` for these servers and return its path; runs and cache are beside it.

    A change is named by its path with two underscores: `gepa__max_generations=2`. `None` takes the setting out.
    """
    config = tomllib.loads((EXAMPLE / "gepa.toml").read_text(encoding="utf-8"))
    addresses = {"container__url": example.container_url, "proposer__base_url": example.reflector_url}
    for name, value in {**addresses, **changes}.items():
        *sections, key = name.split("__")
        table = config
        for section in sections:
            table = table.setdefault(section, {})
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    path = directory / "gepa.toml"
    path.write_text(_toml(config), encoding="utf-8")
    return path


def container_python() -> str:
    """Return the Python that has synth-containers; `make` names it."""
    python = os.environ.get("SYNTH_E2E_PYTHON")
    if not python:
        raise RuntimeError(
            "SYNTH_E2E_PYTHON is not set: `make containers` makes the environment, `make py-test` names it"
        )
    return python


@contextlib.contextmanager
def _served(command: list[str]) -> Iterator[str]:
    """Run a server of the example and yield its address, once it is well."""
    process = subprocess.Popen(  # noqa: S603 (our own scripts)
        [container_python(), str(EXAMPLE / command[0]), "--port", "0", *command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    # A server that never says its address is ended, which ends the reading of its line too.
    watchdog = threading.Timer(START_SECONDS, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline()
        if "http://" not in line:
            raise RuntimeError(f"{command[0]} did not start: it said {line!r}")
        url = line.split()[-1]
        _wait_until_well(url.removesuffix("/v1") + "/health")
        watchdog.cancel()
        yield url
    finally:
        watchdog.cancel()
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _wait_until_well(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:  # noqa: S310 (our own address)
                reply.read()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """Write a table as TOML; texts, numbers, truth values and lists of them are written as JSON writes them."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    nested = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    out = [f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in plain.items()]
    for key, value in nested.items():
        name = f"{prefix}{json.dumps(key)}"
        out.append(f"\n[{name}]\n{_toml(value, name + '.')}")
    return "".join(out)
