"""Every cookbook: its tests pass, its configs are valid, a short run replays from the cache, and codex can propose."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared.acceptance import COOKBOOKS, Case, names, servers

from synth_optimizers import GepaConfig, GepaRun

WAIT_TIMEOUT_SECONDS = 300


def cookbook_python() -> str:
    """Return the Python with the cookbooks' requirements, which `make` sets."""
    python = os.environ.get("SYNTH_COOKBOOK_PYTHON")
    if not python:
        raise RuntimeError("SYNTH_COOKBOOK_PYTHON is not set: `make py-test` makes the environment and names it")
    return python


def run(*command: str | Path) -> str:
    """Run a command, which must succeed, and return its output."""
    ended = subprocess.run(  # noqa: S603 (scripts of this repository)
        [str(word) for word in command], capture_output=True, text=True, timeout=WAIT_TIMEOUT_SECONDS
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("path", sorted((COOKBOOKS / "configs").glob("*.toml")), ids=lambda path: path.stem)
def test_a_config_is_valid(path: Path) -> None:
    assert GepaConfig.from_toml(path, environ={}).warnings == ()


@pytest.mark.parametrize("part", ["shared", *(f"{name}_container" for name in names())])
def test_a_cookbook_passes_its_own_tests(part: str) -> None:
    tests = COOKBOOKS / part / "tests"
    assert "passed" in run(cookbook_python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tests, tests)


@pytest.mark.parametrize("cookbook", names())
def test_a_short_run_replays_from_the_cache(cookbook: str) -> None:
    told = run(sys.executable, COOKBOOKS / "shared" / "acceptance.py", "--cookbook", cookbook, "--short")
    assert "the feeds of the fresh, the cached and the readonly run are equal" in told


@pytest.mark.parametrize("cookbook", [name for name in names() if (COOKBOOKS / f"configs/{name}_codex.toml").exists()])
def test_codex_proposes_with_the_reflector_as_its_model(cookbook: str, tmp_path: Path) -> None:
    codex = os.environ.get("SYNTH_E2E_CODEX")
    if not codex:
        raise RuntimeError("SYNTH_E2E_CODEX is not set: `make py-test` installs codex and names it")
    case = Case.read(cookbook, COOKBOOKS / "configs" / f"{cookbook}_codex.toml", ())
    here = (f"run.output_dir={tmp_path}", f"cache.path={tmp_path / 'cache.sqlite'}", "gepa.max_generations=1")
    command = f"proposer.command={json.dumps([codex])}"
    with servers(case, cookbook_python()) as addresses:
        result = GepaRun.from_toml(case.config, [*case.short, *here, command, *addresses]).execute()
    assert result.usage["proposer_calls"] >= 1
    assert result.candidate_count > 1
    assert result.cost_usd == 0.0
