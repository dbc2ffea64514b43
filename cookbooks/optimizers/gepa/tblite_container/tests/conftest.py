"""Import paths and fixtures of this cookbook's tests: a sandbox of each kind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tblite_container import landlock
from tblite_container.jail import LANDLOCK, LIMITS
from tblite_container.sandbox import Sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Return the best sandbox of this machine."""
    with Sandbox() as made:
        yield made


@pytest.fixture(scope="session")
def fenced() -> Iterator[Sandbox]:
    """Return a sandbox with Landlock and limits."""
    if not landlock.is_supported():
        pytest.skip("this machine has no Landlock")
    with Sandbox(LANDLOCK) as made:
        yield made


@pytest.fixture(scope="session")
def limited() -> Iterator[Sandbox]:
    """Return a sandbox with limits only."""
    with Sandbox(LIMITS) as made:
        yield made
