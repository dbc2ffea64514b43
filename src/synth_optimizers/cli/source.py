"""Finds a run in a directory or in a service. Commands use both through the same functions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from synth_optimizers.cli.errors import CommandError
from synth_optimizers.cli.formatting import did_you_mean
from synth_optimizers.status import RunStatus

if TYPE_CHECKING:
    from synth_optimizers.cli.local import LocalRun
    from synth_optimizers.cli.remote import ServiceRun
    from synth_optimizers.client import Client

RUN_FILES = ("workspace.sqlite", "events.jsonl", "result_manifest.json")
Files = dict[str, tuple[Path, float]]
"""Files by name, each with its modification time."""
RunSource: TypeAlias = "LocalRun | ServiceRun"
"""Where commands read a run and send control requests; both classes have the same functions."""


def find_source(run: str, root: Path, service: str | None, token_file: Path | None) -> RunSource:
    """Return the run named by its directory, its id, or its URL."""
    is_address = run.startswith(("http://", "https://"))
    if is_address and service is not None:
        raise CommandError(f"{run} is a URL of another service than --service {service}", "Remove --service.")
    if is_address or service is not None:
        from synth_optimizers.cli.remote import ServiceRun, split_address

        address, run_id = split_address(run) if service is None else (service, run)
        return ServiceRun(open_client(address, token_file), run_id)
    reject_token(token_file, run)
    from synth_optimizers.cli.local import LocalRun

    return LocalRun(find_run(run, root))


def reject_token(token_file: Path | None, place: str) -> None:
    """Refuse a token when no service is addressed."""
    if token_file is not None:
        raise CommandError(
            f"--token-file {token_file} needs a service, and {place} is not a run of one",
            "Name the run as http://HOST:PORT/runs/RUN_ID, or add --service URL.",
        )


def open_client(address: str, token_file: Path | None) -> Client:
    """Open a client of a service; the caller closes it. Few retries: an unreachable service is reported soon."""
    from synth_optimizers.client import Client

    client = Client(address, token=None if token_file is None else _read_token(token_file), retries=3)
    context = click.get_current_context(silent=True)
    if context is not None:
        context.call_on_close(client.close)
    return client


def _read_token(path: Path) -> str:
    """Read a token, which is never shown."""
    hint = "Name a file that contains only the token of the service."
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        why = (problem.strerror or str(problem)) if isinstance(problem, OSError) else "the file is not UTF-8 text"
        raise CommandError(f"--token-file {path}: {why}", hint) from problem
    if not token:
        raise CommandError(f"--token-file {path}: the file is empty", hint)
    return token


def local_state(status: RunStatus) -> str:
    """Return the state of a run in a directory. An unfinished run that no process executes is interrupted."""
    if status.is_terminal or status.is_held:
        return status.state
    return "failed" if status.state == "failed" else "interrupted"


def is_run_dir(path: Path) -> bool:
    """Return whether a directory holds a run."""
    return any((path / name).exists() for name in RUN_FILES)


def run_dirs(root: Path) -> list[Path]:
    """Return the run directories beneath a root, by name, without the link `latest`."""
    try:
        return sorted(path for path in root.iterdir() if not path.is_symlink() and is_run_dir(path))
    except OSError:
        return []


def find_run(run: str, root: Path) -> Path:
    """Return the directory of a run named by its directory or by its id beneath the root."""
    for path in (Path(run), root / run):
        if is_run_dir(path):
            return path
    if Path(run).is_dir():
        raise CommandError(
            f"{run} is not a run directory: it contains none of {', '.join(RUN_FILES)}",
            "Name a directory that `synth-optimizers gepa run` created; `synth-optimizers runs list` lists them.",
        )
    known = [path.name for path in run_dirs(root)]
    if not known:
        raise CommandError(
            f"run {run!r} does not exist: {run} is not a directory, and {root} contains no runs",
            "Name a run directory, or the directory that contains the runs with --root.",
        )
    shown = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    raise CommandError(f"{root} contains no run {run!r}", f"{did_you_mean(run, known)}Runs in {root}: {shown}.")
