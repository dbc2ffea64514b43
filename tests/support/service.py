"""The real service in a subprocess, for tests; it is always ended by its own process id."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from support.polling import WAIT_TIMEOUT_SECONDS, wait_until

REMOVED_VARIABLE_PREFIXES = ("SYNTH_OPTIMIZERS_", "OPENAI_", "PYTEST_")


@dataclass
class Service:
    """A running service."""

    url: str
    process: subprocess.Popen[str]
    log: Path
    http: httpx.Client = field(repr=False)

    def ask(self, method: str, path: str, body: object = None, **more: Any) -> httpx.Response:  # noqa: ANN401
        """Send a request; a body is JSON."""
        if body is not None:
            more["content"] = json.dumps(body)
            more["headers"] = {"content-type": "application/json", **more.get("headers", {})}
        return self.http.request(method, path, **more)

    def get(self, path: str, **params: str | int) -> Any:  # noqa: ANN401
        """Return a document, which must exist."""
        reply = self.http.get(path, params=params)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def submit(self, config: object, *, key: str | None = None, **more: object) -> httpx.Response:
        """Submit a configuration: a path, TOML text or sections."""
        named = "config_path" if isinstance(config, Path) else "config"
        body = {named: str(config) if isinstance(config, Path) else config, **more}
        return self.ask("POST", "/runs", body, headers={} if key is None else {"idempotency-key": key})

    def run_id(self, config: object, *, key: str | None = None, **more: object) -> str:
        """Submit a configuration that must be accepted, and return the id of its run."""
        reply = self.submit(config, key=key, **more)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["run_id"])

    def request(self, run_id: str) -> dict[str, Any]:
        """Return the run request of a run."""
        found: dict[str, Any] = self.get(f"/runs/{run_id}")["request"]
        return found

    def wait(self, run_id: str, *states: str) -> dict[str, Any]:
        """Wait until a run is in one of these states, or finished."""

        def reached() -> dict[str, Any] | None:
            request = self.request(run_id)
            if request["status"] in states or (not states and request["is_terminal"]):
                return request
            assert not request["is_terminal"], request
            return None

        return wait_until(f"{' or '.join(states) or 'the end'} of {run_id}", reached)

    def stderr(self) -> str:
        """Return its stderr output."""
        return self.log.read_text(encoding="utf-8")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signal the service, wait for its end and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(WAIT_TIMEOUT_SECONDS)


@contextlib.contextmanager
def run_service(
    place: Path, *options: str, token: str | None = None, env: dict[str, str] | None = None, umask: int = -1
) -> Iterator[Service]:
    """Start the service in a directory, with its database there, on a free port of loopback."""
    log = place / "service.log"
    command = [sys.executable, "-m", "synth_optimizers.cli", "gepa", "service", "--db", "service.sqlite"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(REMOVED_VARIABLE_PREFIXES)}
    with log.open("a", encoding="utf-8") as out:
        process = subprocess.Popen(  # noqa: S603 (the program under test)
            [*command, "--bind", "127.0.0.1:0", "--json", *options],
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=out,
            encoding="utf-8",
            env={**kept, "PYTHONWARNINGS": "error", **(env or {})},
            umask=umask,
        )
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    try:
        assert process.stdout is not None
        url = _address(process, log)
        with httpx.Client(base_url=url, timeout=WAIT_TIMEOUT_SECONDS, headers=headers, trust_env=False) as http:
            service = Service(url, process, log, http)
            wait_until("the service", lambda: service.ask("GET", "/ready").status_code == 200)
            yield service
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(WAIT_TIMEOUT_SECONDS / 2)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _address(process: subprocess.Popen[str], log: Path) -> str:
    """Read the document that the service prints once it listens."""
    text = ""
    assert process.stdout is not None
    for line in process.stdout:
        text += line
        with contextlib.suppress(json.JSONDecodeError):
            return str(json.loads(text)["url"])
    raise AssertionError(f"the service did not start: {log.read_text(encoding='utf-8')}")
