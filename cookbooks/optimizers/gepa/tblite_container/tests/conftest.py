"""What the tests of this cookbook share: the way to its modules, and a sandbox of each kind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tblite_container import fence
from tblite_container.jail import LANDLOCK, LIMITS
from tblite_container.sandbox import Sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Return the best sandbox of this machine."""
    with Sandbox() as made:
        yield made


@pytest.fixture(scope="session")
def fenced() -> Iterator[Sandbox]:
    """Return a sandbox that has a fence and limits."""
    if not fence.is_there():
        pytest.skip("this machine has no Landlock")
    with Sandbox(LANDLOCK) as made:
        yield made


@pytest.fixture(scope="session")
def limited() -> Iterator[Sandbox]:
    """Return a sandbox that has limits only."""
    with Sandbox(LIMITS) as made:
        yield made
