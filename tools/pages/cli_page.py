"""`docs/reference/cli.md`: every command with its arguments and options, from the click commands."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator

import click

from pages import UnsupportedExport
from pages.markdown import code, generated_from, page, table

INTRO = """\
# Command line

`synth-optimizers` writes data to stdout and everything for people to stderr. Every command has `--help`; most have
`--json`, which writes one JSON document to stdout. `NO_COLOR` turns colours off.

`RUN` is the directory of a run, a run id beneath `--root`, or `http://HOST:PORT/runs/RUN_ID`. With `--service` it is a
run id of that service. Exit codes are listed under [errors](errors.md#exit-codes)."""


def render(root: click.Group, program: str) -> str:
    """Return the page."""
    commands = list(_commands(root, program))
    summary = [[f"[{code(path)}](#{_anchor(path)})", command.get_short_help_str(200)] for path, command in commands]
    parts = [part for path, command in commands for part in _command(path, command)]
    made_from = generated_from("the click commands", source="src/synth_optimizers/cli")
    return page(made_from, INTRO, table(["command", "what it does"], summary), *parts)


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every leaf command with its full name, in the order of the help."""
    context = click.Context(group)
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")
        elif command is not None:
            yield f"{path} {name}", command


def _anchor(path: str) -> str:
    return path.replace(" ", "-")


def _command(path: str, command: click.Command) -> list[str]:
    if not command.help:
        raise UnsupportedExport(f"the command {path} has no help")
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    parts = [f"## {path}", inspect.cleandoc(command.help), f"```text\n{usage}\n```"]
    options = [_option(path, found, context) for found in command.params if isinstance(found, click.Option)]
    parts.append(table(["option", "meaning", "default"], options) if options else "")
    if command.epilog:
        shown = textwrap.dedent(command.epilog.replace("\b", "")).strip()
        parts.append(f"```text\n{shown}\n```")
    return parts


def _option(path: str, option: click.Option, context: click.Context) -> list[str]:
    if not option.help:
        raise UnsupportedExport(f"the option {option.opts[0]} of {path} has no help")
    value = "" if option.is_flag else f" {option.make_metavar(context)}"
    names = " / ".join([", ".join(sorted(option.opts, key=len, reverse=True)), *option.secondary_opts])
    return [code(names + value), option.help, _default(option, context)]


def _default(option: click.Option, context: click.Context) -> str:
    if option.required:
        return "required"
    if option.multiple:
        return "may be repeated"
    default = option.get_default(context)
    return code(default) if option.show_default and default is not None else ""
