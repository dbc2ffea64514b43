"""`synth-optimizers gepa`: run, check and resume runs, and the schema of their configuration."""

from __future__ import annotations

from pathlib import Path

import click

from synth_optimizers.cli.options import (
    complete_run,
    config_option,
    json_option,
    quiet_option,
    root_option,
    set_option,
    track_option,
)
from synth_optimizers.cli.output import write_json
from synth_optimizers.cli.service import service

__all__ = ["gepa"]


@click.group()
def gepa() -> None:
    """Run, check and resume optimizations."""


@gepa.command("run", short_help="Carry out a run, or go on with it.")
@config_option
@set_option
@json_option
@quiet_option
@click.option("--dry-run", is_flag=True, help="Show the plan and what it can cost; contact nothing.")
@track_option
def run_(
    config: Path, overrides: tuple[str, ...], as_json: bool, quiet: bool, dry_run: bool, trackers: tuple[str, ...]
) -> int:
    """Carry out a run, or go on with it where it was interrupted.

    The first Ctrl-C finishes what is in flight and saves; the second stops now. The same command goes on.
    """
    from synth_optimizers.cli.carry import carry_out, load, trackers_for

    run = load(config, overrides)
    if dry_run:
        from synth_optimizers.cli.plan import show_plan

        return show_plan(run, as_json=as_json)
    return carry_out(run, as_json=as_json, quiet=quiet, subscribers=trackers_for(trackers, run))


@gepa.command(short_help="Find every problem at once, before anything is spent.")
@config_option
@set_option
@json_option
@click.option("--explain", is_flag=True, help="Show every effective value and where it comes from.")
def check(config: Path, overrides: tuple[str, ...], as_json: bool, explain: bool) -> int:
    """Find every problem at once: configuration, output, cache, container, task, proposer and budget."""
    from synth_optimizers.cli.check import check_config

    return check_config(config, overrides, as_json=as_json, explain=explain)


@gepa.command(short_help="Go on with an interrupted run.")
@click.argument("run_dir", metavar="RUN_DIR", shell_complete=complete_run)
@root_option
@json_option
@quiet_option
@track_option
def resume(run_dir: str, root: Path, as_json: bool, quiet: bool, trackers: tuple[str, ...]) -> int:
    """Go on with an interrupted run, with the configuration that it was begun with."""
    from synth_optimizers.cli.carry import carry_out, trackers_for
    from synth_optimizers.cli.find import find_run
    from synth_optimizers.run import GepaRun

    run = GepaRun.from_run_dir(find_run(run_dir, root))
    return carry_out(run, as_json=as_json, quiet=quiet, subscribers=trackers_for(trackers, run))


@gepa.command()
@json_option
def schema(as_json: bool) -> None:  # noqa: ARG001 (it is JSON anyway)
    """Write the JSON Schema of the configuration file, for editors."""
    from synth_optimizers import config_schema

    write_json(config_schema())


gepa.add_command(service)
