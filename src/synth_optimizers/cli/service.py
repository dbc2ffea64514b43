"""`synth-optimizers gepa service`: its options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from synth_optimizers._synth_optimizers import service_defaults
from synth_optimizers.cli.options import json_option, quiet_option

__all__ = ["service"]

F = TypeVar("F", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)
SECONDS = click.FloatRange(min=0, min_open=True)
DEFAULTS = service_defaults()
"""The settings of a service that nothing else is said about."""


def setting(name: str, kind: click.ParamType[Any], text: str) -> Callable[[F], F]:
    """Return the option of a setting that has a default."""
    flag = f"--{name.replace('_', '-')}"
    shown = {COUNT: "N", SECONDS: "SECONDS"}.get(kind, "NAME")
    default = DEFAULTS[name]
    whole = int(default) if kind is SECONDS and default == int(default) else default
    return click.option(flag, name, default=whole, show_default=True, type=kind, metavar=shown, help=text)


@click.command(short_help="Serve runs over HTTP, and carry them out.")
@click.option("--db", required=True, type=PATH, metavar="FILE", help="The database of the service; made if missing.")
@click.option(
    "--bind",
    "bind_addr",
    default=DEFAULTS["bind_addr"],
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen.",
)
@setting("worker_id", click.STRING, "The name of its workers in the queue.")
@setting("workers", COUNT, "How many runs are carried out side by side.")
@setting("lease_seconds", SECONDS, "How long a worker that is not heard of keeps its run.")
@click.option(
    "--config-root",
    type=PATH,
    metavar="DIR",
    help="The directory beneath which submitted files lie. Default: the working directory.",
)
@click.option(
    "--token-file", type=PATH, metavar="FILE", help="A file with the token that callers need; required off loopback."
)
@click.option("--allow-host", "allow_hosts", multiple=True, metavar="NAME", help="Another name that callers may use.")
@click.option(
    "--allow-container",
    "allow_containers",
    multiple=True,
    metavar="ENTRY",
    help="A container off loopback that runs may use: HOST, HOST:PORT or a network.",
)
@setting("pause_timeout_seconds", SECONDS, "How long a run rests before it is cancelled.")
@setting("shutdown_grace_seconds", SECONDS, "How long runs may finish what is under way at the end.")
@setting("silence_seconds", SECONDS, "How long a run may be silent, beyond its own timeouts, before it has failed.")
@setting("max_queued", COUNT, "How many runs may wait.")
@setting("busy_timeout_seconds", SECONDS, "How long to wait for another process that writes to the database.")
@setting("max_connections", COUNT, "Most connections at a time.")
@setting("max_body_mb", COUNT, "The largest request, in megabytes.")
@setting("header_timeout_seconds", SECONDS, "How long a client may take to send its headers.")
@setting("body_timeout_seconds", SECONDS, "How long a client may take to send its body.")
@setting("write_timeout_seconds", SECONDS, "How long a client may take nothing of an answer.")
@quiet_option
@json_option
def service(**settings: Any) -> int:  # noqa: ANN401 (those of the options)
    """Serve runs over HTTP and carry them out, until Ctrl-C, SIGTERM or the end of the terminal.

    The first signal takes no more requests and saves the runs under way; the second hurries. The same command goes on.
    Whoever can call the service can start what a configuration names: keep others out with --token-file.
    """
    from synth_optimizers.cli.serve import serve

    return serve(**settings)
