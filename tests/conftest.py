"""Fixtures that several tests share."""

import signal
from collections.abc import Iterator

import pytest
from support.example import Example, serve_example

# Under `nohup` or in the background, tests ignore these signals, and every subprocess would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """Yield the servers of `examples/ticket_router`, started once per session."""
    with serve_example(tmp_path_factory.mktemp("example")) as running:
        yield running
