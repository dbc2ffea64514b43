"""`init`: finds the function, the rows and the texts of a task, and writes its configuration."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from synth_optimizers.cli.errors import CommandError
from synth_optimizers.function_run import (
    NO_PROPOSER,
    NO_PROPOSER_HINT,
    BridgeCommand,
    find_proposer,
    free_port,
    length_limit,
)
from synth_optimizers.text_source import TextSource

ROW_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
TASK = '''"""Scores one row. Replace the toy below with a call of your program."""


def evaluate(prompt, message, label):
    """Tell spam from messages that are fine."""
    listed = prompt.lower().partition("spam words:")[2].replace(",", " ").split()
    found = [word for word in listed if word in message.lower().split()]
    said = "spam" if found else "fine"
    feedback = f"said {said} because of the words {found}; the message is {label}"
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "cost_usd": 0.0}
    return {"score": said == label, "feedback": feedback, "output": said, "usage": usage}
'''
PROMPT = "A message is spam if it holds one of these words.\nSpam words: winner\n"
SPAM_WORDS = ("winner", "free", "prize", "urgent", "award", "offer", "cash", "exclusive", "voucher", "jackpot")
MESSAGES = (
    ("you get a {word} if you answer today", "spam"),
    ("claim the {word} before midnight", "spam"),
    ("a {word} is waiting for you", "spam"),
    ("the meeting about the {topic} moved to friday", "fine"),
    ("please send me the {topic} by noon", "fine"),
    ("thanks for the {topic}", "fine"),
)
TOPICS = ("report", "invoice", "budget", "schedule", "notes", "contract", "draft", "slides", "minutes", "survey")


@dataclass(frozen=True, slots=True)
class WrittenTask:
    """The files that were written, and what was found out."""

    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def write_task(
    directory: Path,
    function: str | None,
    rows: str | None,
    texts: Mapping[str, str],
    proposer: Mapping[str, str | None],
    limits: tuple[int | None, float | None],
    *,
    force: bool,
) -> WrittenTask:
    """Write gepa.toml, and the files of a task if there is none."""
    written = WrittenTask()
    config = directory / "gepa.toml"
    if config.exists() and not force:
        raise CommandError(f"{config} exists", "Name another --dir, or overwrite the file with --force.")
    directory.mkdir(parents=True, exist_ok=True)
    here = Path.cwd()
    function = _find_function(directory, written) if function is None else _below(function, directory, here)
    rows = _find_rows(directory, function, written) if rows is None else _below(rows, directory, here)
    given = {name: _below(value, directory, here) for name, value in texts.items()}
    given = given or _find_texts(directory, function, written)
    sources = {name: _from(value, directory) for name, value in given.items()}
    found = BridgeCommand(_from(function, directory), _from(rows, directory), sources).describe()
    splits = found["splits"]
    written.notes.append(f"{splits['train']} train and {splits['test']} held-out rows")
    written.notes.append(str(found["smallest_gain_sentence"]))
    written.notes.extend(f"warning: {warning}" for warning in found["warnings"])
    lines = _config(directory, function, rows, given, proposer, limits, written)
    lines += [f"{name} = {value}" for name, value in length_limit(found["texts"]).items()]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    written.files.append(config)
    return written


def _find_function(directory: Path, written: WrittenTask) -> str:
    found = [path.name for path in sorted(directory.glob("*.py")) if _defines_evaluate(path)]
    if len(found) == 1:
        written.notes.append(f"the function is evaluate of {found[0]}")
        return f"{found[0]}:evaluate"
    if found:
        raise CommandError(f"several files define evaluate: {', '.join(found)}", "Name one: init FILE.py:NAME.")
    table = "".join(f"{message},{label}\n" for message, label in [("message", "label"), *example_rows()])
    files = {"task.py": TASK, "rows.csv": table, "prompt.txt": PROMPT}
    if _row_files(directory) or any((directory / name).exists() for name in files):
        raise CommandError(
            f"no Python file in {directory} defines a function evaluate",
            "Name one: init FILE.py:NAME --rows FILE --text NAME=@FILE. In an empty folder, init writes a task.",
        )
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
        written.files.append(directory / name)
    return "task.py:evaluate"


def _row_files(directory: Path) -> list[str]:
    """Return the files of rows in a folder. A JSON file counts only if there is no other kind: many tools have some."""
    found = [path for path in sorted(directory.iterdir()) if path.suffix in ROW_SUFFIXES]
    return [path.name for path in found if path.suffix != ".json"] or [path.name for path in found]


def example_rows() -> list[tuple[str, str]]:
    """Return the messages and labels of the task to begin with."""
    words = zip(SPAM_WORDS, TOPICS, strict=True)
    return [(message.format(word=word, topic=topic), label) for word, topic in words for message, label in MESSAGES]


def _defines_evaluate(path: Path) -> bool:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return False
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(node, kinds) and node.name == "evaluate" for node in tree.body)


def _find_rows(directory: Path, function: str, written: WrittenTask) -> str:
    found = _row_files(directory)
    if len(found) == 1:
        written.notes.append(f"the rows are those of {found[0]}")
        return found[0]
    problem = f"there are several files of rows: {', '.join(found)}" if found else "there is no file of rows"
    raise CommandError(f"{problem} for {function}", "Name one with --rows FILE.")


def _find_texts(directory: Path, function: str, written: WrittenTask) -> dict[str, str]:
    if (directory / "prompt.txt").is_file():
        written.notes.append("the text to improve is prompt, in prompt.txt")
        return {"prompt": "@prompt.txt"}
    raise CommandError(f"there is no text to improve for {function}", "Give one with --text NAME=@FILE.")


def _below(value: str, directory: Path, here: Path) -> str:
    """Return a source whose file is below the working directory relative to the directory of the configuration."""
    mark, path, file = _parts(value)
    if not file or (directory / file).is_file() or not (here / file).is_file():
        return value
    absolute, root = (here / file).resolve(), directory.resolve()
    moved = absolute.relative_to(root) if absolute.is_relative_to(root) else absolute
    return f"{mark}{moved}{path.removeprefix(file)}"


def _from(value: str, directory: Path) -> str:
    """Return a source relative to the directory of the configuration as an absolute one."""
    mark, path, file = _parts(value)
    if not file or not (directory / file).is_file():
        return value
    return f"{mark}{(directory / file).resolve()}{path.removeprefix(file)}"


def _parts(value: str) -> tuple[str, str, str]:
    """Return the mark of a source, what follows it, and the file in it; no file for a text."""
    mark, path = ("@", value[1:]) if value.startswith("@") and not value.startswith("@@") else ("", value)
    file = path if mark else re.split(r"[:#]", path, maxsplit=1)[0]
    return mark, path, file if len(file) < 256 and "\n" not in file else ""


def _config(
    directory: Path,
    function: str,
    rows: str,
    texts: Mapping[str, str],
    proposer: Mapping[str, str | None],
    limits: tuple[int | None, float | None],
    written: WrittenTask,
) -> list[str]:
    port = free_port()
    # Without a command on the path, the module does the same.
    program = (
        ["synth-optimizers"] if shutil.which("synth-optimizers") else [sys.executable, "-m", "synth_optimizers.cli"]
    )
    served = [*program, "serve", function, "--rows", rows]
    served += [part for name, value in texts.items() for part in ("--text", f"{name}={value}")]
    served += ["--port", str(port)]
    budget, max_usd = limits
    chosen = find_proposer(proposer["model"], proposer["base_url"], proposer["api_key_env"])
    if chosen is None:
        section, reason = {"backend": "codex_app_server"}, "Nothing was found; codex is the default: run `codex login`."
        written.notes.append(f"warning: {NO_PROPOSER}. {NO_PROPOSER_HINT}")
    else:
        section, reason = chosen.section, f"Chosen because {chosen.reason}."
        written.notes.append(f"the proposer is {section['backend']}, because {chosen.reason}")
    sources = {name: value for name, value in texts.items() if TextSource.parse(value, directory) is not None}
    return [
        "# Improve the texts of a function. `synth-optimizers gepa check --config gepa.toml` checks everything.",
        "",
        "[container]",
        f'url = "http://127.0.0.1:{port}"',
        "# The run starts this container and ends it.",
        f"command = {_toml(served)}",
        'cwd = "."',
        "# The function gets the whole environment, with the key of its model.",
        'pass_env = ["*"]',
        "startup_timeout_seconds = 300",
        "",
        "[candidate]",
        f"target_modules = {_toml(list(texts))}",
        *(["", "# Where `runs apply` writes the best texts.", "[candidate.sources]"] if sources else []),
        *(f"{name} = {_toml(value)}" for name, value in sources.items()),
        "",
        f"# {reason}",
        "[proposer]",
        *(f"{name} = {_toml(value)}" for name, value in section.items()),
        "",
        "[gepa]",
        f"max_total_rollouts = {budget or 256}",
        *([f"max_cost_usd = {max_usd}"] if max_usd else []),
    ]


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
