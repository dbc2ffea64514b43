"""The one way in which tests wait for something that happens elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 60.0
"""Seconds after which what a test waits for has failed: a guard against a hang, not a promise about speed."""
LOOK_SECONDS = 0.02

Found = TypeVar("Found")


def wait_until(what: str, look: Callable[[], Found | None], patience: float = PATIENCE) -> Found:
    """Look until a look finds something, and return it."""
    deadline = time.monotonic() + patience
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(LOOK_SECONDS)
    return found
