"""Checks command lines of documentation pages without executing them."""

from __future__ import annotations

import re
import subprocess

import click

from support.example import EXAMPLE, ROOT
from synth_optimizers.cli.app import cli

# Programs that pages mention and tests do not run.
ELSEWHERE = {"cd", "cp", "curl", "eval", "export", "pip", "ssh"}


def check_command(words: list[str]) -> None:
    """Check that a command exists and accepts these options."""
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    match words:
        case []:
            pass
        case ["synth-optimizers", *rest]:
            _check_own_command(rest)
        case ["python", script, *_]:
            assert any((place / script).is_file() for place in (ROOT, EXAMPLE)), script
        case ["make", target]:
            subprocess.run(["make", "--dry-run", "--directory", ROOT, target], check=True, capture_output=True)  # noqa: S603, S607
        case [program, *_]:
            assert program in ELSEWHERE, f"{program} is not known"


def _check_own_command(words: list[str]) -> None:
    command: click.Command = cli
    while isinstance(command, click.Group):
        assert words, "the command is not whole"
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"there is no command {words[0]}"
        command, words = found, words[1:]
    given, _, _ = command.make_parser(click.Context(command)).parse_args(words)
    required = [str(option.name) for option in command.params if option.required]
    missing = [name for name in required if not isinstance(given.get(name), str | list | tuple)]
    assert not missing, f"{', '.join(missing)} is missing"
