"""Fixtures that several tests share."""

import signal
from collections.abc import Iterator

import pytest
from support.example import Example, serve_example

# Started by `nohup` or in the background, tests ignore these signals, and every program that they start would as well.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """Yield the servers of `examples/ticket_router`, started once for all tests."""
    with serve_example(tmp_path_factory.mktemp("example")) as running:
        yield running
