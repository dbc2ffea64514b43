"""`synth-optimizers workspace`: status, rebuild and vacuum of a run's database."""

import json
from pathlib import Path
from typing import Any

import click

from synth_optimizers import workspace_rebuild, workspace_status, workspace_vacuum
from synth_optimizers.cli.formatting import format_cost, format_count, format_time
from synth_optimizers.cli.options import existing_file, json_option
from synth_optimizers.cli.output import print_message, write_json, write_lines, write_text

db_option = click.option(
    "--db",
    required=True,
    type=click.Path(path_type=Path),
    callback=existing_file("the workspace.sqlite of a run directory"),
    metavar="FILE",
    help="A workspace.sqlite.",
)


@click.group()
def workspace() -> None:
    """Inspect and maintain the database of a run."""


@workspace.command()
@db_option
@json_option
def status(db: Path, as_json: bool) -> None:
    """Show counts, freshness of projections and invariants."""
    found = workspace_status(db)
    if as_json:
        write_json(found)
    else:
        write_lines(_lines(found), 20)


@workspace.command(short_help="Rebuild every table from the log.")
@db_option
@json_option
@click.option("--check", is_flag=True, help="Compare with the log without changing anything.")
def rebuild(db: Path, as_json: bool, check: bool) -> int:
    """Rebuild every table from the log; with --check, exit with 1 if a table differs."""
    found = workspace_rebuild(db, check=check)
    if as_json:
        write_json(found)
    else:
        done = "rebuilt" if found["replaced"] else "compared"
        write_text(f"{done}: {found['rows']:,} rows from {found['events']:,} events, {found['differing']:,} differed")
        for difference in found["differences"]:
            write_text(f"  {difference['table']} {json.dumps(difference['key'])}")
    if check and found["differing"]:
        print_message(f"hint: `synth-optimizers workspace rebuild --db {db}` rebuilds them from the log.")
        return 1
    return 0


@workspace.command()
@db_option
@json_option
def vacuum(db: Path, as_json: bool) -> None:
    """Release unused space of the file."""
    found = workspace_vacuum(db)
    if as_json:
        write_json(found)
    else:
        write_text(f"{db}: {found['bytes_before']:,} -> {found['bytes_after']:,} bytes")


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    lines = [("workspace", found["path"]), ("schema", found["schema_version"])]
    for run in found["runs"]:
        lines += [("run", run["run_id"]), ("state", run["state"]), ("best", run["best_candidate_id"] or "-")]
        lines += [("started", format_time(run["started_at"])), ("finished", format_time(run["completed_at"]))]
        lines += [("tokens", format_count(run["usage"]["total_tokens"])), ("cost", format_cost(run["cost_usd"]))]
        counts = {name: count for name, count in sorted(run["counts"].items()) if count}
        lines += [
            ("rows" if place == 0 else "", f"{count:>8,}  {name}") for place, (name, count) in enumerate(counts.items())
        ]
    stale = {name: count for name, count in found["projection_status_counts"].items() if name != "fresh"}
    fresh = found["projection_status_counts"].get("fresh", 0)
    lines.append(("projections", ", ".join([f"{fresh} fresh", *(f"{count} {name}" for name, count in stale.items())])))
    report = found["workspace_invariant_report"]
    lines.append(("invariants", f"{report['status']}, {report['violation_count']} violated"))
    for violation in report["violations"]:
        lines.append(("", ", ".join(f"{name}: {value}" for name, value in violation.items() if value)))
    return lines
