"""`synth-optimizers runs`: the commands on runs, in directories and with a service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from synth_optimizers.cli.options import (
    json_option,
    quiet_option,
    root_option,
    run_argument,
    service_option,
    token_option,
)

if TYPE_CHECKING:
    from synth_optimizers.cli.source import RunSource

__all__ = ["runs"]

OUT = click.Path(path_type=Path)
PLACE = click.Path()
"""As it was typed: a slash at the end means a directory."""
reason_option = click.option(
    "--reason", default="asked for on the command line", show_default=True, help="Why; kept in the log."
)


@click.group()
def runs() -> None:
    """Look at runs, take their results, and steer those under way.

    RUN is the directory of a run, a run id beneath --root, or http://HOST:PORT/runs/RUN_ID; with --service, it is a
    run id there.
    """


@runs.command("list")
@root_option
@service_option
@token_option
@json_option
def list_(root: Path, service: str | None, token_file: Path | None, as_json: bool) -> None:
    """List runs, the newest first."""
    from synth_optimizers.cli.runs_list import list_requests, list_runs
    from synth_optimizers.cli.source import client_of, refuse_token

    if service is None:
        refuse_token(token_file, str(root))
        list_runs(root, as_json=as_json)
        return
    list_requests(client_of(service, token_file), as_json=as_json)


@runs.command(short_help="Show scores, candidates, usage and artifacts.")
@run_argument
@json_option
def show(run: RunSource, as_json: bool) -> None:
    """Show one run: scores, candidates, usage, artifacts and the last error."""
    from synth_optimizers.cli.runs_show import show_run

    show_run(run, as_json=as_json)


@runs.command()
@run_argument
@json_option
@click.option("--out", type=OUT, metavar="FILE", help="Write to a file instead of stdout.")
@click.option("--field", metavar="NAME", help="Only the text of this field.")
@click.option("--format", "shape", type=click.Choice(["text", "json"]), default=None, help="Texts or a JSON object.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
def best(run: RunSource, as_json: bool, out: Path | None, field: str | None, shape: str | None, force: bool) -> None:
    """Write the texts of the best candidate."""
    from synth_optimizers.cli.runs_best import write_best

    shape = "json" if as_json else shape or "text"
    write_best(run, out=out, field=field, shape=shape, force=force)


@runs.command(short_help="Show what changed, word by word.")
@run_argument
@click.argument("candidates", nargs=-1, metavar="[CANDIDATE_A CANDIDATE_B]")
@json_option
def diff(run: RunSource, candidates: tuple[str, ...], as_json: bool) -> None:
    """Show word by word what changed from the seed to the best candidate, or between two candidates."""
    from synth_optimizers.cli.runs_diff import show_diff

    show_diff(run, candidates, as_json=as_json)


@runs.command()
@run_argument
@click.option("--out", required=True, type=PLACE, metavar="FILE", help="A .tar.gz, a .zip or a directory; - is stdout.")
@click.option("--format", "shape", type=click.Choice(["csv", "jsonl"]), help="Only the candidates, one line each.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@json_option
def export(run: RunSource, out: str, shape: str | None, force: bool, as_json: bool) -> None:
    """Pack the artifacts of a run, without its request cache.

    A service gives what people read; the log of a container that it started and the folders that a proposer worked in
    stay in the run directory.
    """
    from synth_optimizers.cli.runs_export import export_run

    export_run(run, out, shape=shape, force=force, as_json=as_json)


@runs.command(short_help="Watch a run of another process.")
@run_argument
@json_option
@quiet_option
def watch(run: RunSource, as_json: bool, quiet: bool) -> int:
    """Watch a run of another process or of a service until it ends; Ctrl-C leaves it alone."""
    from synth_optimizers.cli.runs_watch import watch_run

    return watch_run(run, as_json=as_json, quiet=quiet)


@runs.command(short_help="End a run of another process.")
@run_argument
@json_option
@click.option("--stop", is_flag=True, help="Finish early instead: no new search, then the held-out evaluation.")
@reason_option
def cancel(run: RunSource, as_json: bool, stop: bool, reason: str) -> None:
    """End a run that another process or a service carries out; what was paid for is kept."""
    from synth_optimizers.cli.runs_cancel import ask

    ask(run, "stop" if stop else "cancel", reason, as_json=as_json)


@runs.command(short_help="Let a run of a service rest.")
@run_argument
@json_option
@reason_option
def pause(run: RunSource, as_json: bool, reason: str) -> None:
    """Let a run of a service rest; one that rests for too long is cancelled."""
    from synth_optimizers.cli.runs_cancel import ask

    ask(run, "pause", reason, as_json=as_json)


@runs.command(short_help="Let a run of a service that rests go on.")
@run_argument
@json_option
@reason_option
def resume(run: RunSource, as_json: bool, reason: str) -> None:
    """Let a run of a service that rests go on."""
    from synth_optimizers.cli.runs_cancel import ask

    ask(run, "resume", reason, as_json=as_json)
