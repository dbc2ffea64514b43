"""Clients whose delays are short and recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from synth_optimizers.client import AsyncClient, Client

Either = TypeVar("Either", Client, AsyncClient)


def with_short_delays(client: Either) -> Either:
    """Make a client's own delays short; delays that the service asks for stay."""
    client._policy = replace(client._policy, first=0.001, longest=0.002, chance=lambda: 0.0)
    return client
