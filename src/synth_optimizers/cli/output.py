"""Where output goes: data to stdout, people to stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import click

__all__ = ["is_coloured", "is_terminal", "say", "table", "write_json", "write_text"]


def say(text: str = "") -> None:
    """Tell the person something."""
    click.echo(text, err=True)


def write_text(text: str, *, newline: bool = True) -> None:
    """Write data. A reader that has left is no error: there is nobody to write for."""
    try:
        click.echo(text, nl=newline)
    except BrokenPipeError:
        # The interpreter must not meet the pipe again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(0) from None


def write_json(document: Any) -> None:  # noqa: ANN401 (whatever JSON can hold)
    """Write one JSON document with sorted keys."""
    write_text(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, default=str))


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can be drawn on."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def is_coloured(stream: TextIO) -> bool:
    """Return whether colours are wanted on a stream."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write rows as aligned columns; on a terminal a line is cut at its width."""
    widths = [max(len(row[place]) for row in [titles, *rows]) for place in range(len(titles))]
    most = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
    for row in [titles, *rows]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        write_text(line if most is None or len(line) <= most else line[: most - 1] + "…")
