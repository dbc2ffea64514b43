"""`synth-optimizers gepa service`: runs the service in the foreground."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click

from synth_optimizers._synth_optimizers import service_defaults
from synth_optimizers.cli.errors import CommandError
from synth_optimizers.cli.formatting import pluralize
from synth_optimizers.cli.options import json_option, log_options, quiet_option
from synth_optimizers.cli.output import print_message, write_json
from synth_optimizers.cli.session import signal_handlers
from synth_optimizers.queue import gepa_serve

F = TypeVar("F", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)
SECONDS = click.FloatRange(min=0, min_open=True)
DEFAULTS = service_defaults()
"""The default settings of a service."""


def setting(name: str, kind: click.ParamType[Any], text: str) -> Callable[[F], F]:
    """Return the option for a setting that has a default."""
    flag = f"--{name.replace('_', '-')}"
    shown = {COUNT: "N", SECONDS: "SECONDS"}.get(kind, "NAME")
    default = DEFAULTS[name]
    whole = int(default) if kind is SECONDS and default == int(default) else default
    return click.option(flag, name, default=whole, show_default=True, type=kind, metavar=shown, help=text)


@click.command(short_help="Serve runs over HTTP, and execute them.")
@click.option("--db", required=True, type=PATH, metavar="FILE", help="The database of the service; created if missing.")
@click.option(
    "--bind",
    "bind_addr",
    default=DEFAULTS["bind_addr"],
    show_default=True,
    metavar="HOST:PORT",
    help="The address to listen on.",
)
@setting("worker_id", click.STRING, "The name of the workers in the queue.")
@setting("workers", COUNT, "The number of runs that execute concurrently.")
@setting("lease_seconds", SECONDS, "How long a lease lasts if the worker does not renew it.")
@click.option(
    "--config-root",
    type=PATH,
    metavar="DIR",
    help="The directory that contains the files of config_path. Default: the working directory.",
)
@click.option(
    "--token-file", type=PATH, metavar="FILE", help="A file with the token of the service; required beyond loopback."
)
@click.option("--allow-host", "allow_hosts", multiple=True, metavar="NAME", help="Another host name of the service.")
@click.option(
    "--allow-container",
    "allow_containers",
    multiple=True,
    metavar="ENTRY",
    help="A container address other than loopback that runs may use: HOST, HOST:PORT or a network.",
)
@click.option(
    "--allow-proposer",
    "allow_proposers",
    multiple=True,
    metavar="ENTRY",
    help="A proposer address other than loopback and the well-known providers: HOST, HOST:PORT or a network.",
)
@click.option(
    "--allow-key-env",
    "allow_key_envs",
    multiple=True,
    metavar="NAME",
    help="A variable that a configuration may name for a key or a token, besides the keys of well-known providers.",
)
@click.option(
    "--allow-commands/--no-commands",
    default=None,
    help="Whether a configuration may start commands. Default: only if the service has no token.",
)
@click.option(
    "--pause-timeout-seconds",
    type=SECONDS,
    metavar="SECONDS",
    help="Cancel a paused run that is not resumed within this time. Default: a paused run waits until it is resumed.",
)
@setting("shutdown_grace_seconds", SECONDS, "How long calls in flight may take at shutdown.")
@setting("stall_timeout_seconds", SECONDS, "How long a run may make no progress, beyond its own timeouts.")
@setting("outage_retry_seconds", SECONDS, "Pause before a run that an outage interrupted is tried again.")
@setting("max_queued", COUNT, "The maximum number of queued run requests.")
@setting("busy_timeout_seconds", SECONDS, "How long to wait for another process that writes to the database.")
@setting("max_connections", COUNT, "The maximum number of connections.")
@setting("max_body_mb", COUNT, "The maximum size of a request body, in megabytes.")
@setting("header_timeout_seconds", SECONDS, "How long a client may take to send its headers.")
@setting("body_timeout_seconds", SECONDS, "How long a client may take to send its body.")
@setting("write_timeout_seconds", SECONDS, "How long a client may stop reading a response.")
@quiet_option
@json_option
@log_options("info")
def service(
    db: Path,
    config_root: Path | None,
    as_json: bool,
    quiet: bool,
    **settings: Any,  # noqa: ANN401 (the values of the options)
) -> int:
    """Serve runs over HTTP and execute them, until Ctrl-C, SIGTERM or the end of the terminal.

    The first signal stops new work and saves the active runs; the second does not wait. The same command resumes.
    Without a token, a caller of the service can start the commands that a configuration names: use --token-file or
    --no-commands on a shared machine.
    """
    root = config_root or Path.cwd()
    if not db.absolute().parent.is_dir():
        raise CommandError(f"the directory {db.parent} does not exist", "Create it, or choose another --db.")
    workers = settings["workers"]

    def announce(url: str) -> None:
        if not quiet:
            print_message(
                f"service at {url}, database {db}, {pluralize(workers, 'worker')}, configurations beneath {root}"
            )
        if as_json:
            known = {"url": url, "db": str(db), "workers": workers, "config_root": str(root), "pid": os.getpid()}
            write_json(known)
            sys.stdout.flush()

    signals: list[str] = []

    def drain(number: int, _frame: FrameType | None) -> None:
        """Announce what the signal does, and interrupt the service, which then drains."""
        name = signal.Signals(number).name
        signals.append(name)
        text = f"{name}: draining; a second signal stops at once\n" if len(signals) == 1 else f"{name}: stopping now\n"
        if not quiet:
            # Unbuffered, because a signal handler may run in the middle of other output.
            with suppress(OSError):
                os.write(2, text.encode())
        raise KeyboardInterrupt

    with signal_handlers(drain):
        with suppress(KeyboardInterrupt):
            gepa_serve(db, config_root=config_root, on_listening=announce, **settings)
        with suppress(KeyboardInterrupt):
            if signals and not quiet:
                print_message("service stopped; the same command resumes its runs")
    return 0
