"""Where output goes: data to stdout, people to stderr."""

import errno
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TextIO

import click

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What steers a terminal: texts of others must not."""
STEERING = re.compile(r"(?!\x1b\[[0-9;]*m)" + CONTROL.pattern)
"""The same but for colours, which are ours."""


def hold_streams() -> None:
    """Put nothing where a stream is closed, so that no database is opened under its number and written over."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        # The lowest free number is the one of the stream, unless somebody has taken it already.
        opened = os.open(os.devnull, os.O_RDWR)
        if opened == number:
            os.set_inheritable(opened, True)
        setattr(sys, name, os.fdopen(opened, mode, encoding="utf-8", errors="replace", closefd=False))


def say(text: str = "") -> None:
    """Tell the person something. A run does not end because nobody listens."""
    text = CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    try:
        if _live_view is None:
            click.echo(text, err=True)
        else:
            _live_view(text)
    except OSError:
        mute()


_live_view: Callable[[str], None] | None = None


def say_above(view: Callable[[str], None] | None) -> None:
    """Let a live view write what is said, so that it scrolls by above the panel; `None` when the view has ended."""
    global _live_view
    _live_view = view


def mute() -> None:
    """Let what is said from now on go nowhere, and what is still in the buffer as well."""
    with suppress(OSError, ValueError):
        _turn_away(sys.stderr)


def write_text(text: str, *, newline: bool = True) -> None:
    """Write data. A reader that has left is no error: there is nobody to write for."""
    if is_terminal(sys.stdout):
        text = STEERING.sub("\N{REPLACEMENT CHARACTER}", text)
    try:
        click.echo(text, nl=newline)
    except OSError as error:
        if not _has_left(error):
            raise
        _turn_away(sys.stdout)
        raise click.exceptions.Exit(0) from None


def _has_left(error: OSError) -> bool:
    """Return whether the reader of stdout is gone: that of a pipe, or a terminal that was closed."""
    if error.errno == errno.EIO:
        return stat.S_ISCHR(os.fstat(sys.stdout.fileno()).st_mode)
    return isinstance(error, BrokenPipeError)


def _turn_away(stream: TextIO) -> None:
    """Point a stream at nothing: the interpreter must not meet its reader again at its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, stream.fileno())
    finally:
        os.close(nothing)


def write_json(document: Any) -> None:  # noqa: ANN401 (whatever JSON can hold)
    """Write one JSON document with sorted keys."""
    write_text(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, default=str))


def write_lines(lines: Sequence[tuple[str, str]], width: int) -> None:
    """Write labels and texts in two columns."""
    for label, text in lines:
        write_text(f"{label:<{width}}{text}".rstrip())


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal that can be drawn on."""
    return stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write rows as aligned columns; on a terminal a line is cut at its width."""
    widths = [max(len(row[place]) for row in [titles, *rows]) for place in range(len(titles))]
    most = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
    for row in [titles, *rows]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        write_text(line if most is None or len(line) <= most else line[: most - 1] + "…")
