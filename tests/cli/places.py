"""Configurations and containers for the tests of the command line."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CONFIG = """\
[run]
run_id = "router"
seed = 7
output_dir = "runs"

[container]
url = "http://127.0.0.1:{container}"
startup_timeout_seconds = 2

[dataset]
train_seeds = [0, 1, 2, 3, 4, 5]
heldout_seeds = [0, 1, 2]

[candidate]
target_modules = ["router_prompt"]

[proposer]
backend = "openai_compatible"
base_url = "http://127.0.0.1:{proposer}/v1"
model = "offline-reflector"

[proposer.prices.offline-reflector]
prompt_usd = 0.0
completion_usd = 0.0

[gepa]
max_generations = 2
minibatch_size = 3
max_total_rollouts = 120

[cache]
mode = "readwrite"
path = "cache.sqlite"
namespace = "router"
"""


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def write_config(directory: Path, *, container: int, proposer: int, text: str = CONFIG) -> Path:
    """Write a configuration of a small run."""
    path = directory / "gepa.toml"
    path.write_text(text.format(container=container, proposer=proposer))
    return path


@contextlib.contextmanager
def answering(metadata: object) -> Iterator[int]:
    """Serve a container whose every GET is answered with one document."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(metadata).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name in the base)
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
