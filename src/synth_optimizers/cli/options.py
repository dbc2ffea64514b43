"""Options that several commands share."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from synth_optimizers.cli.errors import CommandError

LOG_VARIABLE = "SYNTH_OPTIMIZERS_LOG"
TRACKERS = ("mlflow", "otel", "wandb")
"""The names of `synth_optimizers.tracking`, repeated here because importing that package is slow."""

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Write one JSON document to stdout.")
quiet_option = click.option("--quiet", "-q", is_flag=True, help="Write only errors to stderr.")
config_option = click.option(
    "--config",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The TOML file of the run.",
)
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a field, such as --set gepa.minibatch_size=4; may be repeated.",
)
track_option = click.option(
    "--track",
    "trackers",
    multiple=True,
    metavar="NAME",
    shell_complete=lambda _context, _option, typed: [name for name in TRACKERS if name.startswith(typed)],
    help=f"Track the run with {', '.join(TRACKERS)}; may be repeated.",
)
root_option = click.option(
    "--root",
    default="runs",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The directory that contains the runs.",
)


service_option = click.option("--service", metavar="URL", help="The service that has the run.")
token_option = click.option(
    "--token-file", type=click.Path(path_type=Path), metavar="FILE", help="A file with the token of the service."
)


def log_options(default: str) -> Callable[[F], F]:
    """Add --log-level and --log-format to a command. The default level is `default`, or `error` with --quiet."""

    def add(command: F) -> F:
        @functools.wraps(command)
        def with_logs(log_level: str | None, log_format: str, **rest: Any) -> Any:  # noqa: ANN401
            from synth_optimizers.cli.logs import configure

            usual = "error" if rest.get("quiet") else default
            configure(log_level or os.environ.get(LOG_VARIABLE) or usual, log_format, usual)
            return command(**rest)

        form = click.option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            help="How log records are written to stderr.",
        )
        level = click.option(
            "--log-level",
            metavar="LEVEL",
            help="The lowest log level to show: error, warn, info, debug or trace; container=debug,info for one logger."
            f" Default: {LOG_VARIABLE}, or {default}.",
        )
        return cast("F", level(form(with_logs)))

    return add


def existing_file(what: str) -> Callable[[click.Context, click.Parameter, Path], Path]:
    """Return a callback that checks that a file exists; `what` describes the file in the hint."""

    def check(_context: click.Context, parameter: click.Parameter, path: Path) -> Path:
        if path.is_file():
            return path
        problem = "is a directory" if path.is_dir() else "does not exist"
        raise CommandError(f"{parameter.opts[0]} {path}: the file {problem}", f"Name {what}.")

    return check


def run_argument(command: F) -> F:
    """Add the argument RUN to a command: a run directory, a run id beneath --root, or a run of a service."""

    @functools.wraps(command)
    def with_run(run: str, root: Path, service: str | None, token_file: Path | None, **rest: Any) -> Any:  # noqa: ANN401
        from synth_optimizers.cli.source import find_source

        return command(run=find_source(run, root, service, token_file), **rest)

    for add in (token_option, service_option, root_option):
        add(with_run)
    return cast("F", click.argument("run", metavar="RUN", shell_complete=complete_run)(with_run))


def complete_run(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[click.shell_completion.CompletionItem]:
    """Complete a run id beneath --root; if none matches, complete directories."""
    from click.shell_completion import CompletionItem

    from synth_optimizers.cli.source import run_dirs

    root = context.params.get("root") or Path("runs")
    names = [path.name for path in run_dirs(root) if path.name.startswith(incomplete)]
    return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="dir")]
