"""A stand-in for the service, and clients that do not wait between attempts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.stand_in import StandInService, serve_stand_in

from client.clients import with_short_delays
from synth_optimizers.client import Client


@pytest.fixture
def service() -> Iterator[StandInService]:
    """Yield a stand-in for the service."""
    with serve_stand_in() as standin:
        yield standin


@pytest.fixture
def client(service: StandInService) -> Iterator[Client]:
    """Yield a client of the stand-in."""
    with with_short_delays(Client(service.address)) as made:
        yield made
