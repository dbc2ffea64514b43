"""Polling for conditions in other threads and processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

WAIT_TIMEOUT_SECONDS = 60.0
"""Seconds after which a wait fails: a guard against a hang, not a promise about speed."""
LOOK_SECONDS = 0.02

Found = TypeVar("Found")


def wait_until(what: str, look: Callable[[], Found | None], patience: float = WAIT_TIMEOUT_SECONDS) -> Found:
    """Poll until a call returns something true, and return it."""
    deadline = time.monotonic() + patience
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(LOOK_SECONDS)
    return found
