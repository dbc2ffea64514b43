"""Starts the task and the reflector of `examples/ticket_router` for tests, and writes configs that name them.

`serve_ticket_router` serves the example as its page says. `serve_example` serves the same task on the published SDK,
with faults.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.launch import run_server

from synth_optimizers.bridge import archive

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "ticket_router"
CONTAINER = ROOT / "tests" / "containers" / "ticket_container.py"
COOKBOOKS = ROOT / "cookbooks" / "optimizers" / "gepa"


@dataclass(frozen=True)
class Example:
    """The running servers of the example, and their logs. Only the container on the SDK writes one."""

    container_url: str
    reflector_url: str
    rollout_log: Path | None
    turn_log: Path

    def rollouts(self) -> list[dict[str, Any]]:
        """Return every rollout that reached the container: rollout_id, task_id, prompt (a digest) and failed."""
        assert self.rollout_log is not None, "the bridge writes no log"
        return _lines(self.rollout_log)

    def turns(self) -> list[dict[str, Any]]:
        """Return every proposer turn that reached the reflector: rows and proposals."""
        return _lines(self.turn_log)


@contextlib.contextmanager
def serve_example(log_dir: Path, *, delay: float = 0.0, fail_every: int = 0) -> Iterator[Example]:
    """Start the container with faults and the reflector on free ports of loopback; end them with the block.

    Each rollout takes `delay` seconds; about one rollout in `fail_every` fails with HTTP 500.
    """
    rollout_log, turn_log = log_dir / "rollouts.jsonl", log_dir / "turns.jsonl"
    python = container_python()
    behaviour = ("--delay", str(delay), "--fail-every", str(fail_every), "--log", str(rollout_log))
    with (
        run_server(python, CONTAINER, "--port", "0", *behaviour) as container_url,
        run_server(python, EXAMPLE / "reflector.py", "--port", "0", "--log", str(turn_log)) as reflector_url,
    ):
        yield Example(container_url, reflector_url, rollout_log, turn_log)


@contextlib.contextmanager
def serve_ticket_router(log_dir: Path) -> Iterator[Example]:
    """Start the servers of the example by the commands of its page, on free ports; end them with the block."""
    turn_log = log_dir / "turns.jsonl"
    task = [word for word in serve_words() if word not in ("--port", "9100")]
    with (
        run_server(sys.executable, archive(), *task) as container_url,
        run_server(sys.executable, EXAMPLE / "reflector.py", "--port", "0", "--log", str(turn_log)) as reflector_url,
    ):
        yield Example(container_url, reflector_url, None, turn_log)


def serve_words() -> list[str]:
    """Return the command that serves the task, from the page of the example, with the paths of its files."""
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^synth-optimizers (serve .*)$", page, flags=re.MULTILINE)
    for name in ("router.py", "tickets.jsonl", "prompt.txt"):
        line = line.replace(name, str(EXAMPLE / name))
    return shlex.split(line)


def example_config(directory: Path, example: Example, **changes: object) -> Path:
    """Write the example's `gepa.toml` for these servers and return its path; runs and cache are beside it.

    A change is named by its path with two underscores: `gepa__max_generations=2`. `None` removes the setting.
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
    """Return the Python with synth-containers, which `make` sets."""
    python = os.environ.get("SYNTH_E2E_PYTHON")
    if not python:
        raise RuntimeError(
            "SYNTH_E2E_PYTHON is not set: `make containers` makes the environment, `make py-test` names it"
        )
    return python


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """Return a table as TOML; strings, numbers, booleans and lists are written as JSON."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    nested = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    out = [f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in plain.items()]
    for key, value in nested.items():
        name = f"{prefix}{json.dumps(key)}"
        out.append(f"\n[{name}]\n{_toml(value, name + '.')}")
    return "".join(out)
