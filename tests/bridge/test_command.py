"""The command line of the bridge, and the archive."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.bridge import PYTHON, run_command

from synth_optimizers import bridge
from synth_optimizers.bridge.archive import archive_bytes

FOLDER = Path(bridge.__file__).parent
SOURCES = sorted(FOLDER.rglob("*.py"))
TASK = ("evals.py:evaluate", "--rows", "rows.csv", "--text", "prompt=Say {question}")


def test_describe_says_what_would_be_served(folder: Path) -> None:
    done = run_command(folder, "describe", *TASK)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["texts"] == {"prompt": "Say {question}"}
    assert found["template_variables"] == {"prompt": ["question"]}
    assert found["labels"] == ["answer"]
    assert sum(found["splits"].values()) == found["rows"] == 20
    assert found["function"]["location"].startswith("evals.py:")
    assert found["smallest_gain_sentence"].startswith(f"with {found['splits']['test']} held-out rows")
    again = json.loads(run_command(folder, "describe", *TASK).stdout)
    assert again["digest"] == found["digest"]
    (folder / "rows.csv").write_text((folder / "rows.csv").read_text() + "one more,1\n")
    assert json.loads(run_command(folder, "describe", *TASK).stdout)["digest"] != found["digest"]


@pytest.mark.parametrize(
    ("options", "code", "hint"),
    [
        (("evals.py:evalute", *TASK[1:]), "function_not_found", "Did you mean 'evaluate'?"),
        (("evals.py", *TASK[1:]), "function_name", "Write file.py:NAME"),
        (("nowhere.py:evaluate", *TASK[1:]), "function_not_found", "Name a Python file"),
        (("evals.py:CALLS", *TASK[1:]), "function_kind", "Name a function."),
        (("broken.py:evaluate", *TASK[1:]), "function_import", "Correct the file"),
        (("imports.py:evaluate", *TASK[1:]), "function_import", "Install it for"),
        (("exits.py:evaluate", *TASK[1:]), "function_import", "Correct the file"),
        ((*TASK[:3], "--text", "promt=x"), "function_signature", "Did you mean 'promt'?"),
        ((*TASK[:3], "--text", "prompt"), "text_name", "Write NAME=TEXT"),
        ((*TASK[:3], "--text", "prompt=@nowhere.txt"), "text_not_found", "Name a file"),
        ((*TASK[:3], "--text", "prompt= "), "text_empty", "Give the text"),
        (TASK[:3], "text_missing", "Give one with --text"),
        ((*TASK, "--label", "anser"), "label_unknown", "Did you mean 'answer'?"),
        ((*TASK, "--heldout", "2"), "option_invalid", "between 0 and 1"),
        ((*TASK, "--jobs", "many"), "option_invalid", "--help"),
        ((*TASK, "--split-column", "part"), "split_column_unknown", "Columns: question, answer."),
    ],
)
def test_errors_are_one_line_with_a_hint(folder: Path, options: tuple[str, ...], code: str, hint: str) -> None:
    (folder / "broken.py").write_text("def evaluate(:\n")
    (folder / "imports.py").write_text("import no_such_library\n")
    (folder / "exits.py").write_text("import sys\nprint('hello')\nsys.exit(1)\n")
    done = run_command(folder, "describe", *options)
    assert done.returncode == 2
    message, said = done.stderr.replace("hello\n", "").rstrip("\n").split("\n")
    assert message.startswith(f"error[{code}]: ")
    assert said.startswith("hint: ")
    assert hint in said
    error = json.loads(done.stdout)["error"]
    assert error["code"] == code
    assert message.endswith(error["message"])


def test_a_taken_port_is_named(folder: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run_command(folder, "serve", *TASK, "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "error[address_in_use]" in done.stderr


def test_a_text_may_be_a_file(folder: Path) -> None:
    (folder / "prompt.txt").write_bytes("\ufeffline\r\n{question}\n".encode())
    for given, expected in (("@prompt.txt", "line\r\n{question}\n"), ("@@home", "@home"), ("a=b", "a=b")):
        done = run_command(folder, "describe", *TASK[:3], "--text", f"prompt={given}")
        assert json.loads(done.stdout)["texts"]["prompt"] == expected


def test_texts_may_be_in_one_file(folder: Path) -> None:
    long = "Say {question}. " * 50_000
    (folder / "texts.json").write_text(json.dumps({"prompt": long}))
    done = run_command(folder, "describe", *TASK[:3], "--texts", "texts.json")
    assert json.loads(done.stdout)["texts"] == {"prompt": long}
    for content, code in (("{", "text_not_found"), ("[1]", "text_name"), ('{"prompt": 1}', "text_name")):
        (folder / "texts.json").write_text(content)
        done = run_command(folder, "describe", *TASK[:3], "--texts", "texts.json")
        assert json.loads(done.stdout)["error"]["code"] == code
        assert "texts.json" in done.stderr
    (folder / "texts.json").write_text('{"prompt": "a"}')
    done = run_command(folder, "describe", *TASK, "--texts", "texts.json")
    assert "--text prompt is given twice" in done.stderr


def test_modules_beside_the_function_can_be_imported(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "helper.py").write_text("VALUE = 1\n")
    (folder / "inner" / "task.py").write_text("from helper import VALUE\ndef score(prompt, row):\n    return VALUE\n")
    done = run_command(folder, "describe", "inner/task.py:score", *TASK[1:])
    assert done.returncode == 0, done.stderr
    (folder / "inner" / "__init__.py").touch()
    (folder / "inner" / "task.py").write_text("def score(prompt, row):\n    return 1\n")
    assert run_command(folder, "describe", "inner.task:score", *TASK[1:]).returncode == 0


def test_the_archive_is_the_same_every_time_and_needs_no_package() -> None:
    folder = Path(bridge.__file__).parent
    assert archive_bytes(folder) == archive_bytes(folder) == bridge.archive().read_bytes()
    with zipfile.ZipFile(bridge.archive()) as file:
        assert "synth_optimizers_bridge/server.py" in file.namelist()
    done = subprocess.run(  # noqa: S603 (our own archive)
        [PYTHON, "-I", "-S", str(bridge.archive()), "--help"], capture_output=True, text=True, check=True
    )
    assert "describe" in done.stdout


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.relative_to(FOLDER).as_posix())
def test_the_bridge_is_python_3_9_and_imports_the_standard_library_only(source: Path) -> None:
    tree = ast.parse(source.read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level <= len(source.relative_to(FOLDER).parts), "nothing of the package around it"
            names = [] if node.level else [node.module or ""]
        for name in names:
            assert name.partition(".")[0] in sys.stdlib_module_names, name
