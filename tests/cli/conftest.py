"""Places for the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.places import free_port, write_config


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with a configuration whose container and proposer are dead."""
    write_config(tmp_path, container=free_port(), proposer=free_port())
    return tmp_path
