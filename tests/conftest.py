"""Fixtures that several tests share."""

from collections.abc import Iterator

import pytest
from support.example import Example, serve_example


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """Yield the servers of `examples/ticket_router`, started once for all tests."""
    with serve_example(tmp_path_factory.mktemp("example")) as running:
        yield running
