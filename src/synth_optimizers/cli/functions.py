"""`optimize`, `init` and `serve`: a function and a file of rows as a task."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from synth_optimizers.cli.check import show_plan, write_findings
from synth_optimizers.cli.errors import CommandError, exit_code_for
from synth_optimizers.cli.gepa import execute_run
from synth_optimizers.cli.new_task import write_task
from synth_optimizers.cli.options import json_option, log_options, quiet_option, set_option, track_option
from synth_optimizers.cli.output import print_message, write_json
from synth_optimizers.cli.results import candidates_to_compare, write_changes
from synth_optimizers.cli.summary import command_for, display_path
from synth_optimizers.diff import word_diff
from synth_optimizers.function_run import (
    BridgeCommand,
    choose_proposer,
    free_port,
    gepa_section,
    new_run_id,
)
from synth_optimizers.result import GepaRunResult
from synth_optimizers.run import GepaRun

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_JOBS = 8
PROCESSES_ADVICE = (
    "The container serves your function. With --processes, a call that ends its process or hangs loses only its row."
)


def bridge_options(command: F) -> F:
    """Add the options that describe a task. They are passed on to the bridge as they are."""

    @functools.wraps(command)
    def with_task(**given: Any) -> Any:  # noqa: ANN401
        passed: list[str] = []
        preset = given["from_"]
        for name in ("heldout", "split_column", "seed", "timeout", "describe", "from_", "metric", "prompt", "jobs"):
            value = given.pop(name)
            if name == "jobs":
                given["jobs"] = value
            if value is not None:
                # One word each, because a value may begin with a dash.
                passed.append(f"--{name.strip('_').replace('_', '-')}={value}")
        passed += [f"--label={label}" for label in given.pop("labels")]
        passed += [f"--{name}" for name in ("processes", "skip-unsupported") if given.pop(name.replace("-", "_"))]
        texts: dict[str, str] = {}
        for text in given.pop("texts"):
            # A preset knows its texts: a name chooses one.
            if preset is not None and text.isidentifier():
                passed += ["--text", text]
            else:
                _add_text(texts, text)
        task = BridgeCommand(
            given.pop("function"), _absolute_rows(given.pop("rows")), texts, given.pop("python"), tuple(passed)
        )
        return command(task=task, **given)

    options = (
        click.argument("function", metavar="FUNCTION"),
        click.option(
            "--rows", metavar="SOURCE", help="CSV, TSV, JSON, JSONL or parquet file, file.py:NAME or hf:NAME."
        ),
        click.option(
            "--text",
            "texts",
            multiple=True,
            metavar="NAME=TEXT",
            help="A text to improve: the text itself, @FILE, FILE.toml:KEY, FILE.yaml#KEY or module:NAME. Repeatable.",
        ),
        click.option(
            "--label", "labels", multiple=True, metavar="COLUMN", help="A column that the proposer never sees."
        ),
        click.option("--heldout", type=float, metavar="SHARE", help="Share of held-out rows. Default: 0.3."),
        click.option(
            "--split-column", metavar="NAME", help="The column that names the split of a row. Default: split."
        ),
        click.option("--seed", type=int, help="Another seed divides the rows in another way. Default: 0."),
        click.option(
            "--jobs", type=click.IntRange(1, 1024), default=DEFAULT_JOBS, show_default=True, help="Rollouts at once."
        ),
        click.option("--processes", is_flag=True, help="Run the function in processes instead of threads."),
        click.option("--timeout", type=float, metavar="SECONDS", help="Timeout of one call. Default: 600."),
        click.option("--describe", metavar="TEXT", help="What the task is, for the proposer."),
        click.option(
            "--python",
            default=sys.executable,
            metavar="PATH",
            help="The interpreter of the function, Python 3.9 or newer. Default: the one of this command.",
        ),
        click.option(
            "--from",
            "from_",
            type=click.Choice(["dspy", "inspect", "promptfoo"]),
            help="FUNCTION is a program of DSPy, a task of Inspect or a configuration of promptfoo.",
        ),
        click.option(
            "--metric", metavar="NAME", help="The metric of a DSPy program, or the deciding score of an Inspect task."
        ),
        click.option("--prompt", type=click.IntRange(1), metavar="N", help="The prompt of a promptfoo configuration."),
        click.option(
            "--skip-unsupported", is_flag=True, help="Skip assertions of promptfoo that need Node or a model."
        ),
    )
    for add in reversed(options):
        with_task = add(with_task)
    return cast("F", with_task)


def _add_text(texts: dict[str, str], given: str) -> None:
    """Add a text of the command line to those before it."""
    name, equals, text = given.partition("=")
    if not equals or not name.isidentifier():
        raise CommandError(f"--text {given!r} names no text", "Write --text NAME=TEXT or --text NAME=@FILE.")
    if name in texts:
        raise CommandError(f"--text {name} is given twice", "Give every text once.")
    texts[name] = text


def _absolute_rows(rows: str | None) -> str | None:
    """Return a file of rows as an absolute path, because the container may start elsewhere."""
    return str(Path(rows).resolve()) if rows is not None and Path(rows).is_file() else rows


proposer_options = (
    click.option("--model", metavar="NAME", help="The model that writes the proposals."),
    click.option("--base-url", metavar="URL", help="An OpenAI-compatible endpoint of that model."),
    click.option("--api-key-env", metavar="NAME", help="The variable with its key. Default: OPENAI_API_KEY."),
    click.option(
        "--budget", type=click.IntRange(1), metavar="ROLLOUTS", help="Maximum number of rollouts. Default: 256."
    ),
    click.option("--max-usd", type=click.FloatRange(0, min_open=True), metavar="USD", help="Maximum cost of the run."),
)


def _add(options: tuple[Callable[[F], F], ...]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.command(short_help="Improve the texts that a function uses.")
@bridge_options
@_add(proposer_options)
@click.option("--run-id", metavar="NAME", help="Name of the run. The same name resumes it. Default: function and time.")
@click.option(
    "--output-dir",
    default="runs",
    show_default=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The directory that contains the runs.",
)
@click.option("--dry-run", is_flag=True, help="Check the function and the rows, show the plan, and send nothing.")
@set_option
@json_option
@quiet_option
@track_option
@log_options("warn")
def optimize(
    task: BridgeCommand,
    model: str | None,
    base_url: str | None,
    api_key_env: str | None,
    budget: int | None,
    max_usd: float | None,
    jobs: int,
    run_id: str | None,
    output_dir: Path,
    dry_run: bool,
    overrides: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    trackers: tuple[str, ...],
) -> int:
    """Improve the texts that a function uses.

    FUNCTION is file.py:NAME or module:NAME. Its parameters take the texts and the columns of a row by name, or `row`.
    It returns a score, or (score, feedback); larger is better.

    \b
    synth-optimizers optimize evals.py:evaluate --rows tickets.csv --text prompt=@prompt.txt --model MODEL --budget 500
    """  # noqa: D301 (click keeps the lines below the mark)
    found = task.describe()
    chosen = choose_proposer(model, base_url, api_key_env)
    name = run_id or new_run_id(found["name"], output_dir)
    address = f"http://127.0.0.1:{(port := free_port())}"
    # A run directory does not exist before its run, and a resumed run needs the texts again.
    texts = output_dir.resolve() / f"{name}.texts.json"
    run = GepaRun.from_config(
        {
            "run": {"run_id": name, "output_dir": str(output_dir)},
            "container": {
                "url": address,
                "command": [*task.arguments("serve", texts), "--port", str(port)],
                "cwd": str(Path.cwd()),
                "pass_env": ["*"],
                "startup_timeout_seconds": 300,
            },
            "candidate": {"target_modules": list(found["texts"]), "sources": task.sources},
            "proposer": chosen.section,
            "gepa": gepa_section(budget, max_usd, jobs, found["texts"]),
        },
        overrides,
    )
    if not quiet:
        _show_task(found, f"{_proposer(chosen.section)}, because {chosen.reason}")
    if dry_run:
        return show_plan(run, as_json=as_json, splits=found["task_ids"])
    is_new = not texts.exists()
    if task.texts:
        if not is_new and (output_dir / name).exists() and not task.has_texts(texts):
            raise CommandError(
                f"the texts differ from those with which the run {name} started",
                f"Resume the run with `synth-optimizers gepa resume {output_dir / name}`, or name another --run-id.",
                f"{texts} has the texts of the run",
            )
        task.write_texts(texts)
    report = run.check()
    if not quiet or not report.ok:
        write_findings(report)
    if not report.ok:
        if is_new:
            texts.unlink(missing_ok=True)
        if as_json:
            write_json(report.to_dict())
        return exit_code_for(report.blockers[0].code, 2)
    after = functools.partial(_show_result, has_sources=bool(task.sources))
    advice = None if "--processes" in task.options else PROCESSES_ADVICE
    return execute_run(run, trackers, as_json=as_json, quiet=quiet, after=after, container_advice=advice)


def _proposer(section: dict[str, Any]) -> str:
    where = f" at {section['base_url']}" if "base_url" in section else ""
    return f"{section.get('model', 'the default model')} of {section['backend']}{where}"


def _show_task(found: dict[str, Any], proposer: str) -> None:
    """Show what was found out, before anything is paid."""
    labels = found["labels"]
    shown = [name for name in found["columns"] if name not in labels and name != found["split_column"]]
    kept = f"; not sent to the proposer: {', '.join(labels)}" if labels else ""
    splits = found["splits"]
    lines = [
        ("function", f"{found['function']['location']}, Python {found['python']['version']}"),
        ("texts", ", ".join(found["texts"])),
        ("rows", f"{splits['train']} train, {splits['test']} held-out: {found['smallest_gain_sentence']}"),
        ("columns", f"{', '.join(shown)}{kept}"),
        ("proposer", proposer),
    ]
    for label, text in lines:
        print_message(f"{label:<12}{text}")
    for warning in found["warnings"]:
        print_message(f"warning: {warning}")


def _show_result(run_dir: Path, *, has_sources: bool) -> None:
    """Show the changes of the best candidate, and how to write them back to where they came from."""
    from synth_optimizers.cli.local import LocalRun

    run = LocalRun(run_dir)
    summary = run.summary()
    before, after = candidates_to_compare(summary, (), run)
    changes = {name: word_diff(text, after["payload"].get(name, "")) for name, text in before["payload"].items()}
    print_message()
    claim = GepaRunResult.from_run_dir(run_dir).claim
    if before["candidate_id"] == after["candidate_id"]:
        print_message("the result is the initial texts: " + (claim.sentence if claim else "nothing was better"))
        print_message(f"see what was tried with `{command_for('runs', 'show', run_dir)}`")
        return
    write_changes(changes)
    print_message()
    if claim is not None:
        advice = "" if claim.verdict == "better" else ". Add rows or a larger budget"
        print_message(f"{claim.sentence}{advice}")
    if has_sources:
        print_message(f"write it back with `{command_for('runs', 'apply', run_dir)}`")
    else:
        print_message(f"write it to a file with `{command_for('runs', 'best', run_dir, '--out', 'best.txt')}`")


@click.command(short_help="Serve a function as a container.")
@bridge_options
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=int, default=0, show_default=True, help="0 takes a free port.")
@click.option("--token-env", metavar="NAME", help="The variable with the token that every request must have.")
@click.option("--state", metavar="FILE", help="The file that remembers rollout ids across restarts.")
@click.option("--watch-stdin", is_flag=True, help="End when standard input is closed.")
@json_option
def serve(
    task: BridgeCommand,
    jobs: int,  # noqa: ARG001 (passed on with the options of the bridge)
    host: str,
    port: int,
    token_env: str | None,
    state: str | None,
    watch_stdin: bool,
    as_json: bool,
) -> None:
    """Serve a function as a container and print its URL, for the service or for another machine.

    FUNCTION, its texts and its rows are those of `optimize`. The interpreter of --python replaces this process.
    """
    more = ["--host", host, "--port", str(port)]
    more += ["--token-env", token_env] if token_env else []
    more += ["--state", state] if state else []
    more += ["--watch-stdin"] if watch_stdin else []
    more += ["--json"] if as_json else []
    texts = task.open_texts()
    os.set_inheritable(texts.fileno(), True)
    command = [*task.arguments("serve", f"/dev/fd/{texts.fileno()}"), *more]
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)  # noqa: S606 (the interpreter that the user names)
    except OSError as problem:
        message = f"the interpreter {command[0]} cannot be started: {problem.strerror}"
        raise CommandError(message, "Name a Python interpreter with --python.") from problem


@click.command(short_help="Write the configuration of a task, and a task to begin with.")
@click.argument("function", metavar="[FUNCTION]", required=False)
@click.option("--rows", metavar="FILE", help="The file of rows. Default: the only one in the directory.")
@click.option("--text", "texts", multiple=True, metavar="NAME=@FILE", help="A text to improve. Default: prompt.txt.")
@_add(proposer_options)
@click.option("--dir", "directory", default=".", type=click.Path(path_type=Path), metavar="DIR", help="Where to write.")
@click.option("--force", is_flag=True, help="Overwrite gepa.toml.")
@json_option
def init(
    function: str | None,
    rows: str | None,
    texts: tuple[str, ...],
    model: str | None,
    base_url: str | None,
    api_key_env: str | None,
    budget: int | None,
    max_usd: float | None,
    directory: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Write gepa.toml for a function and rows, and a task to begin with if there is none.

    Finds out what it can: a function named `evaluate` in a Python file, one file of rows, prompt.txt, and the proposer.
    Then `synth-optimizers gepa run --config gepa.toml` runs it.
    """
    proposer = {"model": model, "base_url": base_url, "api_key_env": api_key_env}
    named: dict[str, str] = {}
    for text in texts:
        _add_text(named, text)
    written = write_task(directory, function, rows, named, proposer, (budget, max_usd), force=force)
    if as_json:
        write_json({"files": [str(path) for path in written.files], "notes": written.notes})
        return
    for path in written.files:
        print_message(f"wrote {display_path(path.resolve())}")
    for note in written.notes:
        print_message(note)
    config = shlex.quote(display_path((directory / "gepa.toml").resolve()))
    print_message(f"next: synth-optimizers gepa run --config {config}")
