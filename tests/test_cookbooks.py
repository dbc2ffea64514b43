"""Every cookbook: its own tests pass, its configs have no problem, and a short run replays from the cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared.acceptance import COOKBOOKS, names

from synth_optimizers import GepaConfig

PATIENCE = 300


def cookbook_python() -> str:
    """Return the Python that has what the cookbooks need; `make` names it."""
    python = os.environ.get("SYNTH_COOKBOOK_PYTHON")
    if not python:
        raise RuntimeError("SYNTH_COOKBOOK_PYTHON is not set: `make py-test` makes the environment and names it")
    return python


def run(*command: str | Path) -> str:
    """Run a command and return what it wrote; it must end well."""
    ended = subprocess.run(  # noqa: S603 (our own scripts)
        [str(word) for word in command], capture_output=True, text=True, timeout=PATIENCE
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("path", sorted((COOKBOOKS / "configs").glob("*.toml")), ids=lambda path: path.stem)
def test_a_config_has_no_problem(path: Path) -> None:
    assert GepaConfig.from_toml(path, environ={}).warnings == ()


@pytest.mark.parametrize("cookbook", names())
def test_a_cookbook_passes_its_own_tests(cookbook: str) -> None:
    tests = COOKBOOKS / f"{cookbook}_container" / "tests"
    assert "passed" in run(cookbook_python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tests, tests)


@pytest.mark.parametrize("cookbook", names())
def test_a_short_run_replays_from_the_cache(cookbook: str) -> None:
    told = run(sys.executable, COOKBOOKS / "shared" / "acceptance.py", "--cookbook", cookbook, "--short")
    assert "the feeds of the fresh, the cached and the readonly run are equal" in told
