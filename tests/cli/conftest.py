"""Fixtures for the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.example import Example, serve_example
from support.http_server import free_port

from cli.configs import write_config
from cli.slow_runs import DELAY


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with a configuration whose container and proposer do not answer."""
    write_config(tmp_path, container=free_port(), proposer=free_port())
    return tmp_path


@pytest.fixture(scope="session")
def slow_example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """Yield servers with slow rollouts."""
    with serve_example(tmp_path_factory.mktemp("slow"), delay=DELAY) as running:
        yield running
