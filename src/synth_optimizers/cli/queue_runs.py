"""`runs submit`, `runs stop`, `runs delete` and `runs prune`: change the runs of a service."""

from __future__ import annotations

from pathlib import Path

import click

from synth_optimizers.cli.errors import CommandError
from synth_optimizers.cli.formatting import pluralize
from synth_optimizers.cli.options import config_option, json_option, run_argument, set_option, token_option
from synth_optimizers.cli.output import print_message, write_json, write_lines, write_text
from synth_optimizers.cli.source import RunSource, open_client
from synth_optimizers.cli.summary import command_for

ENDED = ("completed", "failed", "cancelled")

required_service_option = click.option("--service", required=True, metavar="URL", help="The service.")


@click.command(short_help="Submit a run to a service.")
@config_option
@set_option
@click.option("--priority", type=int, default=0, show_default=True, help="Higher priorities are claimed first.")
@click.option("--no-start", is_flag=True, help="Store the run request, and let no worker claim it.")
@click.option("--allow-unverified", is_flag=True, help="Submit without contacting container and proposer first.")
@click.option("--idempotency-key", metavar="KEY", help="Submitting again with the same key starts no second run.")
@required_service_option
@token_option
@json_option
def submit(
    config: Path,
    overrides: tuple[str, ...],
    priority: int,
    no_start: bool,
    allow_unverified: bool,
    idempotency_key: str | None,
    service: str,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Submit a configuration to a service. The text of the file is sent, so the service need not have the file."""
    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        why = (problem.strerror or str(problem)) if isinstance(problem, OSError) else "the file is not UTF-8 text"
        raise CommandError(f"--config {config}: {why}", "Name the TOML file of the run.") from problem
    done = open_client(service, token_file).submit(
        config=text,
        overrides=overrides,
        priority=priority,
        auto_start=not no_start,
        allow_unverified=allow_unverified,
        idempotency_key=idempotency_key,
    )
    for finding in done.warnings:
        print_message(f"warning: {finding.message}")
    if as_json:
        write_json(done.to_dict())
        return
    place = f"{service.rstrip('/')}/runs/{done.run_id}"
    state = f"{done.request.status}{', submitted before' if done.replayed else ''}"
    write_lines([("run", f"{done.run_id} {state}"), ("next", command_for("runs", "watch", place))], 12)


@click.command(short_help="Finish a run early.")
@run_argument
@json_option
@click.option("--reason", default="requested on the command line", show_default=True, help="The reason, for the log.")
def stop(run: RunSource, as_json: bool, reason: str) -> None:
    """End the search of a run early, and finish with the held-out evaluation."""
    answer = run.send_control("stop", reason)
    if as_json:
        write_json(answer)
        return
    why = f" ({answer['reason']})" if answer.get("reason") else ""
    write_text(f"stop of {answer['run_id']}: {answer['acknowledgement']}, state {answer['state']}{why}")


@click.command(short_help="Delete an ended run.")
@run_argument
@json_option
@click.option("--yes", "is_confirmed", is_flag=True, help="Do not ask.")
def delete(run: RunSource, as_json: bool, is_confirmed: bool) -> None:
    """Delete an ended run with its directory. Its answers stay in a request cache outside of the directory."""
    run.check_deletable()
    if not is_confirmed and not click.confirm(f"Delete run {run.name} with all of its files?", err=True):
        raise CommandError(f"run {run.name} was not deleted", "Confirm the question, or add --yes.")
    run.delete()
    if as_json:
        write_json({"run_id": run.name, "deleted": True})
    else:
        write_text(f"deleted {run.name}")


@click.command(short_help="Delete ended runs of a service.")
@required_service_option
@token_option
@click.option("--older-than", metavar="TIME", help="Only runs that ended before this time, like 2026-01-31T12:00:00Z.")
@click.option("--status", "statuses", multiple=True, type=click.Choice(ENDED), help="Only these; may be repeated.")
@click.option("--yes", "is_confirmed", is_flag=True, help="Delete the runs. Without it, they are only listed.")
@json_option
def prune(
    service: str,
    token_file: Path | None,
    older_than: str | None,
    statuses: tuple[str, ...],
    is_confirmed: bool,
    as_json: bool,
) -> int:
    """Delete ended runs of a service with their directories; without --yes, only list them."""
    done = open_client(service, token_file).prune(older_than=older_than, status=statuses, dry_run=not is_confirmed)
    if as_json:
        write_json(done.to_dict())
    else:
        for run_id in done.run_ids:
            write_text(run_id)
        found = pluralize(len(done.run_ids), "run")
        print_message(f"{found} would be deleted; add --yes" if done.dry_run else f"{found} deleted")
        for known in done.not_pruned:
            print_message(f"warning: {known['run_id']} was not deleted: {known['message']}")
    return 1 if done.not_pruned else 0
