"""`ui` and `runs report`: the page and the report, for people who would rather look than read."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import click

from synth_optimizers._synth_optimizers import serve_page
from synth_optimizers.atomic_file import write_atomically
from synth_optimizers.cli.errors import CommandError
from synth_optimizers.cli.options import json_option, log_options, run_argument
from synth_optimizers.cli.output import print_message, write_json, write_text
from synth_optimizers.cli.source import RunSource, is_run_dir


@click.command(short_help="Show runs in a browser, without a service.")
@click.argument("place", default="runs", type=click.Path(path_type=Path))
@click.option(
    "--bind",
    "bind_addr",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="A loopback address to listen on; port 0 selects a free one.",
)
@click.option("--open/--no-open", "open_browser", default=None, help="Open a browser. Default: only on a terminal.")
@json_option
@log_options("warn")
def ui(place: Path, bind_addr: str, open_browser: bool | None, as_json: bool) -> None:
    """Serve the page of the runs in PLACE until Ctrl-C: an output directory, a run directory, or service.sqlite.

    The page only reads. It shows active runs live. Without PLACE, it shows the directory `runs`.
    """
    if not place.exists() and is_run_dir(Path("runs") / place):
        place = Path("runs") / place
    if not place.exists():
        raise CommandError(
            f"{place} does not exist",
            "Name an output directory, a run directory, or the database of a service.",
        )

    def announce(url: str) -> None:
        if is_run_dir(place):
            url = f"{url}runs/{quote(place.resolve().name, safe='')}"
        print_message(f"page of {place} at {url} (Ctrl-C ends it)")
        if as_json:
            write_json({"url": url, "place": str(place), "pid": os.getpid()})
            sys.stdout.flush()
        if open_browser or (open_browser is None and sys.stdout.isatty() and not as_json):
            click.launch(url)

    with suppress(KeyboardInterrupt):
        serve_page(place, bind_addr=bind_addr, on_listening=announce)


@click.command(short_help="Write the report of a run as one HTML file.")
@run_argument
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Where to write it.")
@json_option
def report(run: RunSource, out: Path | None, as_json: bool) -> None:
    """Write the report of a run in any state, as one file that opens without network.

    Without --out, the report goes to standard output. An ended run has it as report.html in its directory.
    """
    text = run.report()
    if out is not None:
        with write_atomically(out) as file:
            file.write(text.encode())
        if as_json:
            write_json({"report": str(out), "bytes": len(text.encode())})
        else:
            print_message(f"report of {run.name} written to {out}")
    elif as_json:
        write_json({"html": text})
    else:
        write_text(text)
