"""A run wherever it is: in a directory, or with a service. Commands read it from here and do not ask which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from synth_optimizers.cli.faults import Refusal
from synth_optimizers.cli.find import find_run

if TYPE_CHECKING:
    from synth_optimizers.client import Client
    from synth_optimizers.events import RunEvent
    from synth_optimizers.status import RunStatus

__all__ = ["Files", "RunSource", "client_of", "find_source", "is_address", "refuse_token"]

Files = dict[str, tuple[Path, float]]
"""Files by name, each with its time."""


class RunSource(Protocol):
    """What the commands want to know about a run, and what they ask of it."""

    @property
    def place(self) -> Path | str:
        """Its directory or its URL, as a person would type it."""

    @property
    def name(self) -> str:
        """What an archive of it is called inside."""

    def identity(self) -> dict[str, str]:
        """Return the name of its place for a program."""

    def status(self) -> RunStatus:
        """Return where it is and what it has used."""

    def state(self) -> str:
        """Return its state in one word."""

    def notes(self) -> list[tuple[str, str]]:
        """Return what else a person should know."""

    def summary(self) -> dict[str, Any]:
        """Return everything about it: overview, candidates, frontier and gains."""

    def best(self) -> dict[str, Any] | None:
        """Return its best candidate with texts and scores."""

    def artifacts(self) -> list[str]:
        """Return the names of its files."""

    def located(self, name: str) -> str:
        """Return where a file of it is."""

    def files(self, scratch: Path) -> Iterator[tuple[str, tuple[Path, float]]]:
        """Yield every file of it with its time; copies are made in a directory for that."""

    def follow(self) -> Iterator[RunEvent]:
        """Yield its events until it ends or nobody works on it."""

    def waiting(self) -> int:
        """Return how many answers wait for their turn; asked again and again while it is followed."""

    def ask(self, kind: str, reason: str) -> dict[str, Any]:
        """Ask for `cancel`, `stop`, `pause` or `resume`."""


def is_address(run: str) -> bool:
    """Return whether a run is named by a URL."""
    return run.startswith(("http://", "https://"))


def find_source(run: str, root: Path, service: str | None, token_file: Path | None) -> RunSource:
    """Return the run that is named by its directory, by its id, or by its URL."""
    if is_address(run) and service is not None:
        raise Refusal(f"{run} names its service, and --service {service} another one", "Leave --service out.")
    if is_address(run) or service is not None:
        from synth_optimizers.cli.remote import ServiceRun, split_address

        address, run_id = split_address(run) if service is None else (service, run)
        return ServiceRun(client_of(address, token_file), run_id)
    refuse_token(token_file, run)
    from synth_optimizers.cli.local import LocalRun

    return LocalRun(find_run(run, root))


def refuse_token(token_file: Path | None, place: str) -> None:
    """Refuse a token where there is no service to show it to."""
    if token_file is not None:
        raise Refusal(
            f"--token-file {token_file} is for a service, and {place} is none",
            "Name the run as http://HOST:PORT/runs/RUN_ID, or add --service URL.",
        )


def client_of(address: str, token_file: Path | None) -> Client:
    """Return a client of a service, which the command closes; nobody waits long for one that is not there."""
    from synth_optimizers.client import Client

    client = Client(address, token=None if token_file is None else _token(token_file), retries=3)
    context = click.get_current_context(silent=True)
    if context is not None:
        context.call_on_close(client.close)
    return client


def _token(path: Path) -> str:
    """Read a token; it is never shown."""
    hint = "Name the file that holds the token of the service, and nothing else."
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        why = (problem.strerror or str(problem)) if isinstance(problem, OSError) else "it is not text"
        raise Refusal(f"--token-file {path}: {why}", hint) from problem
    if not token:
        raise Refusal(f"--token-file {path}: the file is empty", hint)
    return token
