"""The command of the bridge: `serve` serves a function as a container, `describe` checks it and says what it is."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from . import worker
from .errors import BridgeError
from .presets import PRESETS, PresetOptions, load_preset
from .server import DEFAULT_JOBS, DEFAULT_TIMEOUT_SECONDS, Server
from .split import DEFAULT_HELDOUT_SHARE
from .task import BridgeTask, load_task
from .values import dump

EXIT_SECONDS = 2.0


class Parser(argparse.ArgumentParser):
    """A parser whose errors look like all others."""

    def error(self, message: str) -> NoReturn:
        """Raise the error instead of printing the usage."""
        raise BridgeError("option_invalid", message, f"Run `{self.prog} --help` for all options.")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    root = Parser(prog="bridge", description="Serve a Python function and rows as a task container.")
    commands = root.add_subparsers(dest="command", required=True, parser_class=Parser)
    for name, about in (("serve", "serve the container"), ("describe", "check everything and print what it is")):
        command = commands.add_parser(name, help=about, description=about)
        add = command.add_argument
        add("function", metavar="FUNCTION", help="file.py:NAME or module:NAME, or what --from takes")
        add("--from", dest="preset", choices=list(PRESETS), help="serve what a framework has instead of a function")
        add("--metric", metavar="NAME", help="dspy: file.py:NAME or module:NAME; inspect: the scorer that decides")
        add("--prompt", type=int, metavar="N", help="promptfoo: the prompt to improve; the first is 1")
        add("--skip-unsupported", action="store_true", help="promptfoo: skip assertions that need Node or a model")
        add("--rows", metavar="SOURCE", help="CSV, TSV, JSON, JSONL, parquet, file.py:NAME or hf:NAME")
        add("--text", action="append", default=[], metavar="NAME=TEXT", help="a text to improve; NAME=@FILE reads it")
        add("--texts", metavar="FILE", help="a JSON file with texts to improve by name")
        add("--label", action="append", default=None, metavar="COLUMN", help="a column that stays in the container")
        add("--heldout", type=float, default=DEFAULT_HELDOUT_SHARE, metavar="SHARE", help="share of held-out rows")
        add("--split-column", metavar="NAME", help="the column that names the split of a row")
        add("--seed", type=int, default=0, help="another seed divides the rows in another way")
        add("--jobs", type=int, default=DEFAULT_JOBS, help="rollouts at once")
        add("--processes", action="store_true", help="run the function in processes instead of threads")
        add("--timeout", type=float, default=DEFAULT_TIMEOUT_SECONDS, metavar="SECONDS", help="of one call; 0: none")
        add("--state", metavar="FILE", help="SQLite file that remembers rollout ids; a run sets one in its directory")
        add("--host", default="127.0.0.1")
        add("--port", type=int, default=0, help="0 takes a free port")
        add("--token-env", metavar="NAME", help="environment variable with the token that every request must have")
        add("--id", metavar="NAME", help="name of the task")
        add("--describe", metavar="TEXT", help="what the task is, for the proposer")
        add("--watch-stdin", action="store_true", help="end when standard input is closed")
        add("--json", action="store_true", help="print name and URL as one JSON document")
    commands.add_parser("worker")
    return root


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["worker"]:
        return worker.main()
    real_output = 1
    try:
        options = parser().parse_args(given)
        real_input, real_output = worker.protect_streams()
        task = _task(options)
        if options.command == "describe":
            _write(real_output, dump(task.describe()))
            return 0
        return _serve(options, task, real_input, real_output)
    except BridgeError as error:
        print(error, file=sys.stderr)  # noqa: T201
        if given[:1] == ["describe"]:
            _write(real_output, dump(error.document()))
        return 2
    except KeyboardInterrupt:
        return 130


def _task(options: argparse.Namespace) -> BridgeTask:
    shared: dict[str, Any] = {
        "heldout": options.heldout,
        "split_column": options.split_column,
        "seed": options.seed,
    }
    if options.preset is None:
        given = {"--metric": options.metric, "--prompt": options.prompt, "--skip-unsupported": options.skip_unsupported}
        for option, value in given.items():
            if value not in (None, False):
                raise BridgeError("option_invalid", f"{option} is given without --from", "Add --from, or leave it out.")
        if options.rows is None:
            raise BridgeError("option_invalid", "--rows is missing", "Name the rows, such as --rows tickets.csv.")
        texts = read_texts(options.text, options.texts)
        name, labels, about = options.id, options.label, options.describe
        return load_task(options.function, options.rows, texts, labels=labels, name=name, description=about, **shared)
    found = load_preset(options.preset, _preset_options(options))
    options.processes = options.processes or found.needs_processes
    return load_task(
        found.function,
        found.rows,
        found.texts,
        labels=found.labels if options.label is None else options.label,
        name=options.id or found.name,
        description=options.describe or found.description,
        warnings=found.warnings,
        placeholders=found.placeholders,
        **shared,
    )


def _preset_options(options: argparse.Namespace) -> PresetOptions:
    texts: dict[str, str | None] = read_texts([entry for entry in options.text if "=" in entry], options.texts)
    for entry in options.text:
        if "=" not in entry and entry not in texts:
            texts[entry] = None
    return PresetOptions(
        options.function, options.rows, options.metric, tuple(texts.items()), options.prompt, options.skip_unsupported
    )


def read_texts(given: list[str], file: str | None = None) -> dict[str, Any]:
    """Return the texts of a JSON file, of `NAME=TEXT` and of `NAME=@FILE`. `@@` begins a text with an at sign."""
    texts: dict[str, str] = {} if file is None else _texts_of(file)
    for entry in given:
        name, equals, text = entry.partition("=")
        if not equals:
            raise BridgeError("text_name", f"--text is {entry!r}", "Write NAME=TEXT or NAME=@FILE.")
        if name in texts:
            raise BridgeError("text_name", f"--text {name} is given twice", "Give every text once.")
        if text.startswith("@@"):
            text = text[1:]
        elif text.startswith("@"):
            text = _read_file(name, Path(text[1:]))
        texts[name] = text
    return texts


def _texts_of(file: str) -> dict[str, str]:
    """Return the texts of a file. It has texts of any length, and no other user sees them in the list of processes."""
    try:
        found = json.loads(Path(file).read_bytes())
    except (OSError, ValueError) as error:
        message = f"the file {file} of --texts cannot be read: {error}"
        raise BridgeError("text_not_found", message, "Name a JSON file with an object of texts by name.") from error
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        message = f"the file {file} of --texts has no object of texts by name"
        raise BridgeError("text_name", message, 'Write a file such as {"prompt": "Answer briefly."}.')
    return found


def _read_file(name: str, path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        message = f"the file {path} of --text {name} cannot be read: {error.strerror}"
        raise BridgeError("text_not_found", message, "Name a file that exists, or write the text itself.") from error
    except UnicodeDecodeError as error:
        message = f"the file {path} of --text {name} is not UTF-8 (byte {error.start})"
        raise BridgeError("text_encoding", message, "Save the file as UTF-8.") from error


def _serve(options: argparse.Namespace, task: BridgeTask, real_input: int, real_output: int) -> int:
    token = None
    if options.token_env:
        token = os.environ.get(options.token_env)
        if not token:
            raise BridgeError("token_missing", f"${options.token_env} is not set", "Set it to the token of the run.")
    for warning in task.warnings:
        print(f"warning: {warning}", file=sys.stderr)  # noqa: T201
    if options.host not in ("127.0.0.1", "::1", "localhost") and token is None:
        print("warning: every host that reaches this address can run rollouts; use --token-env", file=sys.stderr)  # noqa: T201
    server = Server(
        task,
        jobs=options.jobs,
        processes=options.processes,
        timeout=options.timeout,
        state=options.state or _state_of_run(),
        host=options.host,
        port=options.port,
        token=token,
    )
    end = threading.Event()

    def stop(*_: Any) -> None:
        end.set()

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, stop)
    url = server.open()
    _write(real_output, dump({"name": task.name, "url": url}) if options.json else f"{task.name} at {url}")
    if options.watch_stdin:
        threading.Thread(target=_watch, args=(real_input, end), daemon=True).start()
    while not end.wait(3600):
        pass
    # Threads that hang in the function, or exit handlers of libraries, must not keep the process.
    threading.Thread(target=_leave, daemon=True).start()
    server.close()
    return 0


def _state_of_run() -> str | None:
    """Return the state file in the directory of the run that started this process, if a run did."""
    run_dir = os.environ.get("SYNTH_OPTIMIZERS_RUN_DIR")
    return str(Path(run_dir) / "rollouts.sqlite") if run_dir and Path(run_dir).is_dir() else None


def _watch(real_input: int, end: threading.Event) -> None:
    while os.read(real_input, 4096):
        pass
    end.set()


def _leave() -> None:
    threading.Event().wait(EXIT_SECONDS)
    os._exit(0)


def _write(handle: int, line: str) -> None:
    data = f"{line}\n".encode("utf-8", "replace")
    while data:
        data = data[os.write(handle, data) :]
