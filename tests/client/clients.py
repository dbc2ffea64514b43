"""Clients whose waits take no time and are written down."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from synth_optimizers.client import AsyncClient, Client

Either = TypeVar("Either", Client, AsyncClient)


def quick(client: Either) -> Either:
    """Make the waits of a client short; those that the service wishes for stay."""
    client._policy = replace(client._policy, first=0.001, longest=0.002, chance=lambda: 0.0)
    return client
