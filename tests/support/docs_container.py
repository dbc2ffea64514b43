"""The container of `docs/reference/containers.md`, started on a free port, and the HTTP exchanges on the page."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import markdown
from support.example import ROOT, container_python
from support.http_server import free_port
from support.polling import WAIT_TIMEOUT_SECONDS, wait_until

PAGE = ROOT / "docs/reference/containers.md"
STOP_SECONDS = 10
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True)
class Exchange:
    """One HTTP exchange on the page; `reply` is a subset of the answer."""

    method: str
    path: str
    request: Any
    status: int
    reply: Any


def blocks(language: str) -> list[str]:
    """Return the code blocks of one language."""
    return markdown.blocks(PAGE.read_text(encoding="utf-8"), language)


def exchanges() -> list[Exchange]:
    """Return the exchanges in order: a `Request` and its `Reply`, or a `Reply of` a call without a body."""
    text = PAGE.read_text(encoding="utf-8")
    label = r"^(Request|Reply)(?: with status (\d+))?(?: of)?(?: `(\w+) (\S+)`)?(?: \(shortened\))?:"
    block = r"\n\n```json\n(.*?)^```$"
    found = []
    asked: tuple[str, str, Any] | None = None
    for kind, status, method, path, body in re.findall(label + block, text, flags=re.MULTILINE | re.DOTALL):
        if kind == "Request":
            asked = (method, path, json.loads(body))
            continue
        if method:
            asked = (method, path, None)
        if asked is None:
            raise ValueError(f"no request stands before the reply {body}")
        method, path, request = asked
        found.append(Exchange(method, path, request, int(status or 200), json.loads(body)))
    return found


def rollout_exchange() -> Exchange:
    """Return the exchange of a whole rollout, as a run with the first configuration sends it."""
    (found,) = (exchange for exchange in exchanges() if exchange.request and "candidate_overlay" in exchange.request)
    return found


@contextlib.contextmanager
def running(directory: Path) -> Iterator[str]:
    """Run the example with the Python of the test containers and yield its address; end it with the block."""
    script = directory / "container.py"
    script.write_text(blocks("python")[0], encoding="utf-8")
    port = free_port()
    log = directory / "container.log"
    with log.open("wb") as out:
        command = [container_python(), "-I", str(script), str(port)]
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=directory)  # noqa: S603 (code of our own page)
    try:
        wait_until_healthy(process, port, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until `/health` answers; fail with the log if the process ends or takes too long."""

    def is_healthy() -> bool:
        if process.poll() is not None:
            pytest.fail(f"the container has ended: {log.read_text(encoding='utf-8')}")
        with contextlib.suppress(OSError):
            return call(f"http://127.0.0.1:{port}", "GET", "/health")[0] == 200
        return False

    wait_until("the health of the container", is_healthy)


def call(url: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Make one call and return its status and JSON."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=WAIT_TIMEOUT_SECONDS)
    try:
        headers = {} if body is None else {"content-type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def differences(shown: object, real: object, place: str = "reply") -> list[str]:
    """Return where an answer differs from the page. It may have more keys and other times."""
    if isinstance(shown, dict) and isinstance(real, dict):
        missing = [f"{place}.{key} is missing" for key in shown.keys() - real.keys()]
        shared = [key for key in shown if key in real]
        return missing + [found for key in shared for found in differences(shown[key], real[key], f"{place}.{key}")]
    if isinstance(shown, list) and isinstance(real, list) and len(shown) == len(real):
        pairs = enumerate(zip(shown, real, strict=True))
        return [found for index, pair in pairs for found in differences(*pair, f"{place}[{index}]")]
    if isinstance(shown, str) and isinstance(real, str) and TIME.fullmatch(shown) and TIME.fullmatch(real):
        return []
    return [] if shown == real and type(shown) is type(real) else [f"{place} is {real!r}, the page shows {shown!r}"]
