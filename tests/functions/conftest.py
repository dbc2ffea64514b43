"""A task of a function, rows and a prompt, and a proposer without a model."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shared.launch import run_server
from shared.with_servers import reflector_of

from synth_optimizers.cli.new_task import write_task


@pytest.fixture(scope="session")
def reflector() -> Iterator[str]:
    """Serve the reflector of the template, which knows the toy task of `init`."""
    with run_server(sys.executable, *reflector_of("template"), "--port", "0") as url:
        yield url


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Write the toy task of `init` into a folder."""
    write_task(
        tmp_path,
        None,
        None,
        {},
        {"model": "offline-reflector", "base_url": "http://127.0.0.1:1/v1", "api_key_env": None},
        (None, None),
        force=False,
    )
    return tmp_path
