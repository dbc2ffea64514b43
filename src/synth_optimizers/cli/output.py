"""Output streams: data goes to stdout, messages for people to stderr."""

import errno
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

import click

from synth_optimizers.visible_text import visible_text


def reopen_closed_streams() -> None:
    """Open the null device for each closed standard stream, so that no database gets its file descriptor."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        # `open` returns the lowest free descriptor, which is that of the stream unless it is in use already.
        opened = os.open(os.devnull, os.O_RDWR)
        if opened == number:
            os.set_inheritable(opened, True)
        setattr(sys, name, os.fdopen(opened, mode, encoding="utf-8", errors="replace", closefd=False))


def print_message(text: str = "") -> None:
    """Print a message to stderr, always as visible text. A closed stderr does not end the run."""
    text = visible_text(text)
    try:
        if _live_view is None:
            click.echo(text, err=True)
        else:
            _live_view(text)
    except OSError:
        discard_messages()


_live_view: Callable[[str], None] | None = None


def print_through(view: Callable[[str], None] | None) -> None:
    """Route messages through a live view, which prints them above its panel; `None` restores stderr."""
    global _live_view
    _live_view = view


def discard_messages() -> None:
    """Discard all further messages, and those still in the buffer, even if stderr is closed."""
    with suppress(OSError, ValueError):
        _redirect_to_null(sys.stderr)


def write_text(text: str, *, newline: bool = True) -> None:
    """Write data to stdout: exactly to a file or a pipe, as visible text to a terminal."""
    _write(_for_stdout(text), newline=newline)


def write_styled(pieces: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Write one line of pieces to a terminal, each with its style. The styles are the only control sequences."""
    _write("".join(click.style(_for_stdout(text), **style) if style else _for_stdout(text) for text, style in pieces))


def _for_stdout(text: str) -> str:
    return visible_text(text) if sys.stdout.isatty() else text


def _write(text: str, *, newline: bool = True) -> None:
    """Write to stdout. If the reader has closed the pipe, exit quietly."""
    try:
        # Without `color`, click removes colour sequences from the data.
        click.echo(text, nl=newline, color=True)
    except OSError as error:
        if not _is_reader_gone(error):
            raise
        _redirect_to_null(sys.stdout)
        raise click.exceptions.Exit(0) from error


def _is_reader_gone(error: OSError) -> bool:
    """Return whether the reader of stdout is gone: a closed pipe or a closed terminal."""
    if error.errno == errno.EIO:
        return stat.S_ISCHR(os.fstat(sys.stdout.fileno()).st_mode)
    return isinstance(error, BrokenPipeError)


def _redirect_to_null(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that the flush at interpreter exit cannot fail."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, stream.fileno())
    finally:
        os.close(nothing)


def write_json(document: Any) -> None:  # noqa: ANN401 (any JSON value)
    """Write one JSON document with sorted keys."""
    write_text(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, default=str))


def write_lines(lines: Sequence[tuple[str, str]], width: int) -> None:
    """Write labels and texts in two columns."""
    for label, text in lines:
        write_text(f"{label:<{width}}{text}".rstrip())


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal that supports drawing."""
    return stream is not None and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def write_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write rows as aligned columns. On a terminal, lines are cut to its width."""
    widths = [max(len(row[place]) for row in [titles, *rows]) for place in range(len(titles))]
    most = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
    for row in [titles, *rows]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        write_text(line if most is None or len(line) <= most else line[: most - 1] + "…")
