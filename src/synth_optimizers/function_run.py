"""A run of a function: the bridge serves it, and a configuration is made of what is given and what can be found out."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from synth_optimizers._synth_optimizers import RunFold, config_schema
from synth_optimizers.atomic_file import write_atomically
from synth_optimizers.errors import CancelledError, ConfigError, E, SynthOptimizerError, error_of
from synth_optimizers.events import RunEvent
from synth_optimizers.handle import Subscriber
from synth_optimizers.result import GepaRunResult
from synth_optimizers.run import GepaRun
from synth_optimizers.text_source import read_texts

OPENAI_URL = "https://api.openai.com/v1"
NO_PROPOSER = "no proposer was found: no endpoint, no key and no sign-in of codex"
NO_PROPOSER_HINT = (
    "Set OPENAI_API_KEY and name a --model; or name an OpenAI-compatible endpoint with --base-url; "
    "or run `codex login`."
)
DESCRIBE_SECONDS = 300.0
"""How long the user's interpreter may take to import the function and to load the rows."""


@dataclass(frozen=True, slots=True)
class ProposerChoice:
    """The `[proposer]` section of a run, and why it was chosen."""

    section: dict[str, Any]
    reason: str


@dataclass(frozen=True, slots=True)
class BridgeCommand:
    """The command that serves a function in the user's interpreter."""

    function: str
    """`file.py:name`, `module:name`, or the target of a preset."""
    rows: str | None
    given: InitVar[Mapping[str, str]]
    """Texts and their sources by name, as `--text` takes them."""
    python: str = sys.executable
    options: Sequence[str] = ()
    """Further options of the bridge, such as `--jobs 8`."""
    texts: dict[str, str] = field(init=False)
    """The texts by name."""
    sources: dict[str, str] = field(init=False)
    """The sources of the texts that come from files."""

    def __post_init__(self, given: Mapping[str, str]) -> None:
        """Read the texts once, so that every process gets the same."""
        texts, sources = read_texts(given)
        object.__setattr__(self, "texts", texts)
        object.__setattr__(self, "sources", sources)

    def arguments(self, command: str, texts: str | os.PathLike[str]) -> list[str]:
        """Return the whole command line of a command of the bridge: `serve` or `describe`.

        `texts` is a file that `write_texts` or `open_texts` wrote: a command line is limited, and other users see it.
        """
        from synth_optimizers.bridge import archive

        rows = [] if self.rows is None else ["--rows", self.rows]
        file = ["--texts", os.fspath(texts)] if self.texts else []
        return [self.python, str(archive()), command, self.function, *rows, *file, *self.options]

    def write_texts(self, path: Path) -> None:
        """Write the texts to a file that only this user can read."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as out:
            os.fchmod(out.fileno(), stat.S_IRUSR | stat.S_IWUSR)
            out.write(self._document())

    def has_texts(self, path: Path) -> bool:
        """Return whether a file has these texts."""
        return path.read_bytes() == self._document()

    def open_texts(self) -> BinaryIO:
        """Return an open file with the texts. It has no name, and a process that inherits it reads `/dev/fd/NUMBER`."""
        file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
        file.write(self._document())
        file.flush()
        file.seek(0)
        return cast("BinaryIO", file)

    def _document(self) -> bytes:
        return json.dumps(self.texts).encode()

    def describe(self) -> dict[str, Any]:
        """Load and check everything in the user's interpreter, and return what the task consists of."""
        try:
            with self.open_texts() as texts:
                done = subprocess.run(  # noqa: S603 (the interpreter that the user names)
                    self.arguments("describe", f"/dev/fd/{texts.fileno()}"),
                    capture_output=True,
                    check=False,
                    timeout=DESCRIBE_SECONDS,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[texts.fileno()],
                )
        except OSError as problem:
            message = f"the interpreter {self.python} cannot be started: {problem.strerror}"
            raise error_of(ConfigError, message, "Name a Python interpreter with --python.") from problem
        except subprocess.TimeoutExpired as problem:
            message = f"{self.function} was not loaded within {DESCRIBE_SECONDS:.0f} s"
            raise error_of(
                ConfigError, message, "Do slow work in the function, not when its file is imported."
            ) from problem
        said = done.stderr.decode("utf-8", "replace").strip()
        try:
            document: dict[str, Any] = json.loads(done.stdout)
        except ValueError as problem:
            message = f"{self.python} ended with {done.returncode} before it described {self.function}"
            hint = "Check that the interpreter is Python 3.9 or newer, and that the file can be imported."
            raise error_of(ConfigError, message, hint, said[-2000:] or None) from problem
        if "error" in document:
            found = document["error"]
            message = f"[{found['code']}] {found['message']}"
            raise error_of(ConfigError, message, found.get("hint"), found.get("detail"))
        return document


def choose_proposer(
    model: str | None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> ProposerChoice:
    """Choose the proposer by what is there: an endpoint, an OpenAI-style key, or codex with a sign-in."""
    found = find_proposer(model, base_url, api_key_env, environ)
    if found is None:
        raise error_of(ConfigError, f"[proposer_missing] {NO_PROPOSER}", NO_PROPOSER_HINT)
    return found


def find_proposer(
    model: str | None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> ProposerChoice | None:
    """Return the proposer that is there, or `None`. An endpoint or a key without a model is an error."""
    key = api_key_env or "OPENAI_API_KEY"
    address = base_url or environ.get("OPENAI_BASE_URL") or None
    if address or environ.get(key) or api_key_env:
        if model is None:
            where = f"the endpoint at {address}" if address else "OpenAI"
            message = f"[model_missing] --model is missing: {where} needs a model"
            raise error_of(ConfigError, message, "Name the model that writes the proposals, such as --model MODEL.")
        section = {"backend": "openai_compatible", "base_url": address or OPENAI_URL, "model": model}
        if api_key_env or environ.get(key):
            section["api_key_env"] = key
        variable = f"{key} is set" if environ.get(key) else "--api-key-env is given"
        reason = "--base-url is given" if base_url else "OPENAI_BASE_URL is set" if address else variable
        return ProposerChoice(section, reason)
    home = Path(environ.get("CODEX_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".codex")
    if not (home / "auth.json").is_file():
        return None
    section = {"backend": "codex_app_server", "auth_mode": "host", **({"model": model} if model else {})}
    return ProposerChoice(section, f"codex is signed in ({home / 'auth.json'})")


def free_port() -> int:
    """Return a port of the loopback interface on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def new_run_id(name: str, output_dir: Path) -> str:
    """Return a run id of a task name and the time that no run in a directory has."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"
    first = f"{words[:60]}-{time.strftime('%Y%m%d-%H%M%S')}"
    ids = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
    return next(run_id for run_id in ids if not (output_dir / run_id).exists())


def gepa_section(budget: int | None, max_usd: float | None, jobs: int, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the `[gepa]` section of a budget."""
    section: dict[str, Any] = {"pipeline": {"workers": {"rollout": jobs}}, **length_limit(texts)}
    if budget is not None:
        section["max_total_rollouts"] = budget
    if max_usd is not None:
        section["max_cost_usd"] = max_usd
    return section


def length_limit(texts: Mapping[str, str]) -> dict[str, int]:
    """Return the setting that lets long texts double. The default refuses every proposal for a text that exceeds it."""
    room = 2 * max(map(len, texts.values()), default=0)
    usual = config_schema()["$defs"]["GepaSection"]["properties"]["max_field_chars"]["default"]
    return {"max_field_chars": room} if room > usual else {}


def optimize(
    evaluate: Callable[..., Any] | str,
    *,
    rows: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
    texts: Mapping[str, str],
    model: str | None = None,
    budget: int | None = None,
    max_usd: float | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    labels: str | Sequence[str] | None = None,
    heldout: float = 0.3,
    jobs: int = 8,
    timeout: float = 600.0,
    seed: int = 0,
    run_id: str | None = None,
    output_dir: str | os.PathLike[str] = "runs",
    overrides: Mapping[str, Any] | None = None,
    subscribers: Iterable[Subscriber] = (),
    progress: bool = True,
) -> GepaRunResult:
    """Improve the texts that a function uses, and return the result of the run.

    `evaluate` takes the texts and the row by the names of its parameters, and returns a score, `(score, feedback)`, or
    a mapping; larger is better. It is served from threads of this process, so a function of a notebook cell works.
    `rows` are mappings, or a file of rows. `texts` are the texts to improve, or their sources such as `@prompt.txt`.
    `budget` is the maximum number of rollouts. The same `run_id` resumes a run.

    >>> result = optimize(evaluate, rows="tickets.csv", texts={"prompt": "@prompt.txt"}, model="MODEL", budget=500)
    >>> print(result.claim)
    """
    # The server is slow to import, and most users of this module start it in another interpreter.
    from synth_optimizers import bridge

    for name, text in texts.items():
        if not isinstance(text, str):
            raise error_of(ConfigError, f"the text {name!r} is {text!r}, not a text", "Give texts by their names.")
    if not isinstance(rows, (str, os.PathLike, Iterable)):
        raise error_of(ConfigError, f"rows is {rows!r}", "Give a list of mappings, or the path of a file of rows.")
    chosen = choose_proposer(model, base_url, api_key_env)
    contents, sources = read_texts(texts)
    source = rows if isinstance(rows, str) else os.fspath(rows) if isinstance(rows, os.PathLike) else list(rows)
    hidden = [labels] if isinstance(labels, str) else labels
    try:
        task = bridge.load_task(evaluate, source, contents, labels=hidden, heldout=heldout, seed=seed)
        name = run_id or new_run_id(task.name, Path(output_dir))
        # A run directory does not exist before its run, and the function is served before that.
        state = Path(output_dir) / f"{name}.rollouts.sqlite"
        with closing(bridge.Server(task, jobs=jobs, timeout=timeout, state=state)) as server:
            config = {
                "run": {"run_id": name, "output_dir": str(output_dir), "seed": seed},
                "container": {"url": server.bind()},
                "candidate": {"target_modules": list(contents), "sources": sources},
                "proposer": chosen.section,
                "gepa": gepa_section(budget, max_usd, jobs, contents),
            }
            # A configuration with a problem leaves no files.
            run = GepaRun.from_config(config, overrides or {})
            state.parent.mkdir(parents=True, exist_ok=True)
            server.open()
            limit = run.config.to_dict()["gepa"]["max_total_rollouts"]
            lines = [ProgressLine(bridge.gain_sentence(task.heldout_rows), limit)] if progress else []
            return _execute(run, [*lines, *subscribers])
    except bridge.BridgeError as problem:
        found = error_of(ConfigError, f"[{problem.code}] {problem.message}", problem.hint, problem.detail)
        raise _with_notes(found) from None
    except SynthOptimizerError as problem:
        _with_notes(problem)
        raise


def _with_notes(error: E) -> E:
    """Return an error whose traceback also shows its detail and its hint: nothing else shows them in a notebook."""
    for note in (error.detail, error.hint and f"hint: {error.hint}"):
        if note:
            error.add_note(note)
    return error


def _execute(run: GepaRun, subscribers: Iterable[Subscriber]) -> GepaRunResult:
    """Execute a run. An interrupt says where the run is saved and how it is resumed."""
    try:
        return run.execute(subscribers=subscribers)
    except KeyboardInterrupt:
        settings = run.config.to_dict()["run"]
        name, folder = settings["run_id"], Path(settings["output_dir"]) / settings["run_id"]
        message = f"the run {name} is saved in {folder}: the same call with run_id={name!r} resumes it"
        raise KeyboardInterrupt(message) from None


class ProgressLine:
    """Shows the progress of a run as one line that updates: in a notebook cell, or on a terminal."""

    def __init__(self, first: str, max_rollouts: int | None) -> None:
        self._most = "" if max_rollouts is None else f" of at most {max_rollouts:,}"
        self._display = _notebook_display()
        self._fold = RunFold()
        self._shown_at = 0.0
        self._show(first)

    def on_event(self, event: RunEvent) -> None:
        """Apply the event, and update the line a few times a second."""
        self._fold.apply(event.sequence_number, event.ts, event.type, event.fields, event.message)
        if time.monotonic() - self._shown_at > 0.3:
            self._show(self._text("running"))

    def close(self, result: GepaRunResult | None, error: BaseException | None) -> None:
        """Show how the run ended."""
        if isinstance(error, CancelledError):
            self._show(self._text("interrupted"))
        elif result is None:
            # The exception says why.
            self._show(self._text("failed"))
        else:
            self._show(self._text("completed" if result.claim is None else result.claim.sentence))
        if self._display is None and sys.stderr.isatty():
            sys.stderr.write("\n")

    def _text(self, state: str) -> str:
        totals, score = self._fold.totals(), self._fold.shown()["best_train_score"]
        best = "" if score is None else f", best train score {score['mean']:.3f}"
        return f"{totals['train_rollouts'] + totals['heldout_rollouts']:,}{self._most} rollouts{best}, {state}"

    def _show(self, text: str) -> None:
        self._shown_at = time.monotonic()
        if self._display is not None:
            self._display.update({"text/plain": text}, raw=True)
        elif sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()


def _notebook_display() -> Any:  # noqa: ANN401 (IPython has no types)
    """Return a display that can be updated, if this is a notebook."""
    shell = sys.modules.get("IPython")
    if shell is None or shell.get_ipython() is None or not hasattr(shell.get_ipython(), "kernel"):
        return None
    return shell.display.display({"text/plain": ""}, raw=True, display_id=True)
