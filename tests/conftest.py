"""Fixtures that several tests share."""

import signal
from collections.abc import Iterator

import pytest
from support.example import Example, serve_example, serve_ticket_router

# Under `nohup` or in the background, tests ignore these signals, and every subprocess would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """Yield the task of `examples/ticket_router` on the published SDK and its reflector, started once per session."""
    with serve_example(tmp_path_factory.mktemp("example")) as running:
        yield running


@pytest.fixture(scope="session")
def ticket_router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """Yield the servers of `examples/ticket_router` as its page starts them, once per session."""
    with serve_ticket_router(tmp_path_factory.mktemp("ticket_router")) as running:
        yield running
