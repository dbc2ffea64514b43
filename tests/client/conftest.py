"""A stand-in for the service, and clients of it that do not wait between two attempts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.standin import StandIn, standing_in

from client.clients import quick
from synth_optimizers.client import Client


@pytest.fixture
def service() -> Iterator[StandIn]:
    """Yield a stand-in for the service."""
    with standing_in() as standin:
        yield standin


@pytest.fixture
def client(service: StandIn) -> Iterator[Client]:
    """Yield a client of it."""
    with quick(Client(service.address)) as made:
        yield made
