"""`optimize`, `init`, `serve` and `runs apply` as a new user runs them."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from shared.launch import run_server
from shared.with_servers import reflector_of

from cli.commands import CommandResult, command, environment


@pytest.fixture(scope="module")
def reflector() -> Iterator[str]:
    """Serve the reflector of the template, which knows the toy task of `init`."""
    with run_server(sys.executable, *reflector_of("template"), "--port", "0") as url:
        yield url


@pytest.fixture
def task(tmp_path: Path, reflector: str) -> Path:
    """Write the toy task of `init` into a folder."""
    assert run(tmp_path, "init", "--base-url", reflector, "--model", "offline-reflector").code == 0
    return tmp_path


def run(folder: Path, *arguments: str, **environ: str) -> CommandResult:
    """Run a command in a folder. `synth-optimizers` is on the path, as after an installation."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(  # noqa: S603 (our own command)
        command(*arguments),
        cwd=folder,
        env=environment(PATH=path, **environ),
        capture_output=True,
        text=True,
        timeout=120,
    )
    return CommandResult(arguments, ended.returncode, ended.stdout, ended.stderr)


def optimize(folder: Path, reflector: str, *more: str) -> CommandResult:
    """Run the command of the README."""
    named = (
        "--rows",
        "rows.csv",
        "--text",
        "prompt=@prompt.txt",
        "--base-url",
        reflector,
        "--model",
        "offline-reflector",
    )
    return run(folder, "optimize", "task.py:evaluate", *named, "--budget", "300", "--run-id", "first", *more)


def test_texts_that_changed_since_the_start_do_not_replace_those_of_the_run(task: Path, reflector: str) -> None:
    assert optimize(task, reflector).code == 0
    kept = next(task.glob("runs/first.texts.json")).read_bytes()
    (task / "prompt.txt").write_text("Another prompt.\n")
    ended = optimize(task, reflector)
    assert ended.code == 2
    assert "the texts differ from those with which the run first started" in ended.stderr
    assert "gepa resume runs/first" in ended.stderr
    assert next(task.glob("runs/first.texts.json")).read_bytes() == kept


def test_one_command_improves_the_prompt_and_writes_it_back(task: Path, reflector: str) -> None:
    before = (task / "prompt.txt").read_text()
    ended = optimize(task, reflector)
    assert ended.code == 0, ended.stderr
    said = ended.stderr
    assert re.search(r"rows +\d+ train, \d+ held-out: with \d+ held-out rows a gain above 0\.\d\d can be told", said)
    assert "columns     message; not sent to the proposer: label" in said
    assert "proposer    offline-reflector of openai_compatible" in said
    assert "because --base-url is given" in said
    assert re.search(r"held-out +seed .*\n +best .*\n +gain \+0\.\d+ \(\d+ better, ", said)
    sentence = r"better than the initial candidate by 0\.\d+ \[0\.\d+, 0\.\d+\], p = 0\.\d+\n"
    assert len(re.findall(sentence, said)) == 2, "in the summary, and below the changes"
    assert "{+" in ended.stdout
    # One next step, and nothing after it.
    assert said.endswith("write it back with `synth-optimizers runs apply runs/first`\n")
    assert "runs best" not in said
    # The labels stay in the container.
    db = (task / "runs/first/events.jsonl").read_text()
    assert '"label"' not in db
    shown = run(task, "runs", "apply", "first", "--dry-run")
    assert (shown.code, (task / "prompt.txt").read_text()) == (0, before)
    applied = run(task, "runs", "apply", "first")
    assert applied.stdout.endswith("prompt written to prompt.txt\n")
    assert (task / "prompt.txt").read_text() != before
    assert (task / "prompt.txt").read_text().endswith("\n")
    assert run(task, "runs", "apply", "first").stdout.endswith("prompt already in prompt.txt\n")
    (task / "prompt.txt").write_text("my own text\n")
    refused = run(task, "runs", "apply", "first")
    assert refused.code == 2
    assert "has changed since the run" in refused.stderr
    assert (task / "prompt.txt").read_text() == "my own text\n"
    forced = run(task, "runs", "apply", "first", "--force", "--json")
    assert json.loads(forced.stdout)["texts"][0]["written"] is True


def test_a_dry_run_shows_the_plan_and_starts_nothing(task: Path) -> None:
    ended = optimize(task, "http://127.0.0.1:1/v1", "--dry-run")
    assert ended.code == 0, ended.stderr
    assert "can be told from luck" in ended.stderr
    assert "rows                41 train, 19 held-out\n" in ended.stdout
    assert not (task / "runs").exists()
    # It is the plan of a configuration whose rows are known.
    planned = json.loads(optimize(task, "http://127.0.0.1:1/v1", "--dry-run", "--json").stdout)
    known = ("dataset.train_seeds=0..40", "dataset.heldout_seeds=0..18", "gepa.max_total_rollouts=300")
    sets = [word for value in known for word in ("--set", value)]
    expected = json.loads(run(task, "gepa", "run", "--config", "gepa.toml", "--dry-run", "--json", *sets).stdout)
    assert planned == expected
    assert planned["train_rows"] == 41
    # Rows that the user selects are selected from those of the file.
    fewer = optimize(task, "http://127.0.0.1:1/v1", "--dry-run", "--json", "--set", "dataset.train_seeds=0..9")
    assert [json.loads(fewer.stdout)[f"{split}_rows"] for split in ("train", "heldout")] == [10, 19]


def test_a_dead_proposer_is_found_before_the_first_rollout(task: Path) -> None:
    ended = optimize(task, "http://127.0.0.1:1/v1")
    assert ended.code == 3
    assert "error[proposer/" in ended.stderr
    assert not (task / "runs/first/events.jsonl").exists()
    assert not (task / "runs/first.texts.json").exists()


def test_the_next_step_of_a_text_without_a_file_is_a_file(task: Path, reflector: str) -> None:
    named = ("--rows", "rows.csv", "--base-url", reflector, "--model", "offline-reflector", "--budget", "300")
    given = ("task.py:evaluate", *named, "--run-id", "plain")
    ended = run(task, "optimize", *given, "--text", "prompt=Spam words: winner")
    assert ended.code == 0, ended.stderr
    command = "synth-optimizers runs best runs/plain --out best.txt"
    assert ended.stderr.endswith(f"write it to a file with `{command}`\n")
    assert run(task, *command.split()[1:]).code == 0
    assert (task / "best.txt").read_text().startswith("Spam words: ")
    best = (task / "best.txt").read_text()
    # The initial text is as good as it gets.
    again = run(task, "optimize", *given[:-1], "best", "--text", f"prompt={best}")
    assert again.code == 0, again.stderr
    assert "the result is the initial texts: no other candidate was tried\n" in again.stderr
    assert again.stderr.endswith("see what was tried with `synth-optimizers runs show runs/best`\n")


def test_a_function_that_ends_its_process_gets_the_advice_to_use_processes(task: Path, reflector: str) -> None:
    code = (task / "task.py").read_text()
    (task / "task.py").write_text(code.replace("    listed =", "    import os\n    os._exit(3)\n    listed ="))
    ended = optimize(task, reflector)
    assert ended.code == 3, ended.stderr
    assert "the container exited: exit code 3" in ended.stderr
    assert "With --processes, a call that ends its process or hangs loses only its row." in ended.stderr


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            ("--set", "gepa.search=reference"),
            r"no evidence of improvement on the held-out rows: .*\. Add rows or a larger budget",
        ),
        # A search in sprints returns the initial text if nothing is shown.
        (
            (),
            r"the result is the initial texts: no evidence of improvement on the held-out rows: .*; "
            r"the candidate that the search preferred is gepa_\w+",
        ),
    ],
    ids=["reference", "sprint"],
)
def test_a_gain_that_can_be_luck_and_failed_rollouts_are_named(
    task: Path, reflector: str, settings: tuple[str, ...], sentence: str
) -> None:
    rows = (task / "rows.csv").read_text().splitlines()
    known = [f"{row},train" for row in rows[1:50]] + [f"{row},test" for row in rows[50:54]]
    (task / "rows.csv").write_text("\n".join([f"{rows[0]},split", *known]) + "\n")
    code = (task / "task.py").read_text()
    (task / "task.py").write_text(code.replace("    listed =", "    assert 'notes' not in message\n    listed ="))
    ended = optimize(task, reflector, *settings)
    assert ended.code == 0, ended.stderr
    assert re.search(f"\n{sentence}\n", ended.stderr), ended.stderr
    assert re.search(r"rollouts +\d+ train, \d+ held-out, \d+ of them failed\n", ended.stderr)


@pytest.mark.parametrize("source", ["texts.toml:models.'small-1.5'.prompt", "texts.py:PROMPT"])
def test_a_text_of_any_length_goes_through_a_private_file(task: Path, reflector: str, source: str) -> None:
    text = "Ignore the rest. " * 8_000 + "Spam words: winner"
    (task / "texts.toml").write_text(f'[models."small-1.5"]\nprompt = """{text}"""\n')
    (task / "texts.py").write_text(f'PROMPT = "{text}"\n')
    named = ("task.py:evaluate", "--rows", "rows.csv", "--text", f"prompt={source}")
    model = ("--base-url", reflector, "--model", "offline-reflector", "--budget", "200")
    ended = run(task, "optimize", *named, *model, "--run-id", "long")
    assert ended.code == 0, ended.stderr
    held = task / "runs/long.texts.json"
    assert json.loads(held.read_text()) == {"prompt": text}
    assert held.stat().st_mode & 0o777 == 0o600
    assert run(task, "runs", "apply", "long").code == 0
    assert len((task / source.partition(":")[0]).read_text()) > len(text)
    (task / "texts.toml").write_text(f'[models."small-1.5"]\nprompt = """{text}"""\n')
    served = run(task, "init", *named, *model[:4], "--force")
    assert served.code == 0, served.stderr
    checked = run(task, "gepa", "check", "--config", "gepa.toml", "--json")
    assert json.loads(checked.stdout)["ok"], checked.stdout


def test_an_exception_of_the_function_is_a_failed_run(task: Path, reflector: str) -> None:
    (task / "task.py").write_text("def evaluate(prompt, message):\n    raise LookupError(message)\n")
    ended = optimize(task, reflector)
    assert ended.code == 1, ended.stderr
    assert "error[synth_optimizer_failed]: " in ended.stderr
    assert "LookupError" in ended.stderr
    hint = ended.stderr.split("hint: ")[-1]
    assert "fix the task" in hint
    assert "cache" not in hint


@pytest.mark.parametrize(
    ("function", "more", "problem"),
    [
        ("task.py:evalate", (), "evaluate"),
        ("missing.py:evaluate", (), "missing.py"),
        ("task.py:evaluate", ("--rows", "none.csv"), "none.csv"),
        ("task.py:evaluate", ("--text", "promt=x"), "promt"),
        ("task.py:evaluate", ("--label", "nope"), "nope"),
        ("task.py:evaluate", ("--heldout", "1.5"), "1.5"),
        ("task.py:evaluate", ("--python", "/no/such/python"), "/no/such/python"),
        ("task.py:evaluate", ("--text", "=x"), "names no text"),
    ],
)
def test_bad_input_is_an_error_with_the_value_and_a_hint(
    task: Path, function: str, more: tuple[str, ...], problem: str
) -> None:
    rows = () if "--rows" in more else ("--rows", "rows.csv")
    text = () if "--text" in more else ("--text", "prompt=@prompt.txt")
    ended = run(task, "optimize", function, *rows, *text, "--base-url", "http://127.0.0.1:1/v1", "--model", "m", *more)
    assert ended.code == 2, ended.stderr
    assert problem in ended.stderr
    assert "hint: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_init_finds_what_is_there_and_overwrites_nothing(task: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in task.iterdir() if path.is_file()) == [
        "gepa.toml",
        "prompt.txt",
        "rows.csv",
        "task.py",
    ]
    refused = run(task, "init")
    assert refused.code == 2
    assert "gepa.toml exists" in refused.stderr
    ended = run(task, "gepa", "run", "--config", "gepa.toml", "--set", "run.run_id=by-file", "--quiet")
    assert ended.code == 0, ended.stderr
    assert run(task, "runs", "apply", "by-file").code == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "evals.py").write_text("def evaluate(system, row):\n    return len(system) > 3\n")
    (other / "data.jsonl").write_text("".join(f'{{"q": "question {n}", "answer": {n}}}\n' for n in range(20)))
    missing = run(other, "init")
    assert "no text to improve" in missing.stderr
    (other / "system.md").write_text("Be brief.\n")
    found = run(other, "init", "--text", "system=@system.md", "--json", HOME=str(tmp_path))
    assert found.code == 0, found.stderr
    notes = json.loads(found.stdout)["notes"]
    assert "the function is evaluate of evals.py" in notes
    assert "the rows are those of data.jsonl" in notes
    assert any("no proposer was found" in note for note in notes)


def test_serve_prints_its_address_and_ends_with_its_signal(task: Path) -> None:
    served = subprocess.Popen(  # noqa: S603 (our own command)
        command("serve", "task.py:evaluate", "--rows", "rows.csv", "--text", "prompt=@prompt.txt"),
        cwd=task,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = served.stdout.readline() if served.stdout else ""
        assert re.fullmatch(r"evaluate at http://127\.0\.0\.1:\d+\n", line)
        with urllib.request.urlopen(line.split()[-1] + "/taskset", timeout=10) as reply:  # noqa: S310 (loopback)
            splits = json.load(reply)["splits"]
        assert len(splits["train"]) + len(splits["test"]) == 60
    finally:
        served.send_signal(signal.SIGTERM)
        assert served.wait(20) == 0
        if served.stdout:
            served.stdout.close()
