"""The command line itself: help, version, completion, and failures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cli.commands import assert_snapshot, command, environment, run_cli
from synth_optimizers import __version__
from synth_optimizers.cli import app, options
from synth_optimizers.cli.errors import error_report
from synth_optimizers.errors import error_table
from synth_optimizers.tracking import TRACKERS


def test_help_lists_the_exit_codes(tmp_path: Path) -> None:
    ended = run_cli("--help", cwd=tmp_path)
    assert_snapshot("help", ended, tmp_path)
    assert {row["exit_code"] for row in error_table()} <= {1, 2, 3, 4, 5, 130}


@pytest.mark.parametrize("name", ["gepa", "runs", "events", "workspace"])
def test_every_group_lists_its_commands(name: str, tmp_path: Path) -> None:
    assert_snapshot(f"help_{name}", run_cli(name, "--help", cwd=tmp_path), tmp_path)


def test_every_command_has_help_and_json_output() -> None:
    def walk(group: click.Group, path: str) -> None:
        context = click.Context(group)
        for name in group.list_commands(context):
            known = group.get_command(context, name)
            assert known is not None, f"{path} {name}"
            assert known.help, f"{path} {name}"
            if isinstance(known, click.Group):
                walk(known, f"{path} {name}")
            elif name != "completion":
                options = {option for parameter in known.params for option in parameter.opts}
                assert "--json" in options, f"{path} {name}"

    walk(app.cli, "synth-optimizers")


def test_version_option_prints_the_package_version(tmp_path: Path) -> None:
    ended = run_cli("--version", cwd=tmp_path)
    assert (ended.code, ended.stdout) == (0, f"synth-optimizers {__version__}\n")


def test_no_command_prints_help_and_fails(tmp_path: Path) -> None:
    ended = run_cli(cwd=tmp_path)
    assert (ended.code, ended.stdout) == (2, "")
    assert "Exit codes:" in ended.stderr


def test_help_imports_no_slow_modules(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from synth_optimizers.cli.app import run_command\n"
        "run_command(['gepa', 'run', '--help'])\n"
        "heavy = ('rich', 'sqlite3', 'tarfile', 'synth_optimizers.cli.live')\n"
        "sys.exit(', '.join(name for name in heavy if name in sys.modules) or 0)\n"
    )
    done = subprocess.run(  # noqa: S603 (a script of this test)
        [sys.executable, "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell: str, tmp_path: Path) -> None:
    ended = run_cli("completion", shell, cwd=tmp_path)
    assert ended.code == 0
    assert "_SYNTH_OPTIMIZERS_COMPLETE" in ended.stdout


def test_commands_options_and_runs_are_completed(tmp_path: Path) -> None:
    (tmp_path / "runs" / "router").mkdir(parents=True)
    (tmp_path / "runs" / "router" / "events.jsonl").touch()

    def complete(*words: str) -> str:
        asked = {
            "_SYNTH_OPTIMIZERS_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["synth-optimizers", *words]),
            "COMP_CWORD": str(len(words)),
        }
        return run_cli(cwd=tmp_path, env=asked).stdout

    assert "plain,check" in complete("gepa", "ch")
    assert "plain,--dry-run" in complete("gepa", "run", "--dr")
    assert "plain,router" in complete("runs", "show", "ro")
    assert "plain,router" in complete("gepa", "resume", "ro")
    assert "plain,wandb" in complete("gepa", "run", "--track", "w")


def test_help_lists_the_available_trackers() -> None:
    assert tuple(TRACKERS) == options.TRACKERS


def test_an_unexpected_error_prints_one_sentence_and_how_to_report_it() -> None:
    fault = error_report(ZeroDivisionError("division by zero"))
    assert fault.exit_code == 1
    assert fault.message == "unexpected error: ZeroDivisionError: division by zero"
    report = Path(fault.hint.rsplit(" ", 1)[1].removesuffix("."))
    assert "synth-optimizers --version" in fault.hint
    assert "ZeroDivisionError" in report.read_text()
    report.unlink()


def test_an_early_interrupt_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app.cli, "main", interrupted)
    assert app.run_command(["gepa", "run"]) == 130
    assert capsys.readouterr().err.startswith("error[interrupted]: interrupted\n")


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(  # noqa: S603 (the program under test)
            command("gepa", "schema"), cwd=tmp_path, env=environment(), stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"error[io_error]: the output: No space left on device\n")


def test_the_schema_is_a_json_document(tmp_path: Path) -> None:
    schema = json.loads(run_cli("gepa", "schema", cwd=tmp_path).stdout)
    assert "gepa" in schema["properties"]


def test_data_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    ended = run_cli("runs", "list", "--root", "läufe", "--json", cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert "läufe" in json.loads(ended.stdout)["error"]["message"]
