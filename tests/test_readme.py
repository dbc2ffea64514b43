"""The examples of the README run as they stand there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.example import EXAMPLE, ROOT, Example

from synth_optimizers import GepaConfig, GepaRun

README = (ROOT / "README.md").read_text(encoding="utf-8")
PATIENCE = 120


def blocks(language: str) -> list[str]:
    """Return the code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def place(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the README's configuration for the servers that are running."""
    place = tmp_path_factory.mktemp("readme")
    text = blocks("toml")[0].replace("http://127.0.0.1:9100", example.container_url)
    text = text.replace("http://127.0.0.1:9101/v1", example.reflector_url)
    (place / "gepa.toml").write_text(text, encoding="utf-8")
    return place


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102 (the README is ours)


def test_the_commands_run(place: Path) -> None:
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("synth-optimizers ")]
    assert len(commands) > 5
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        words = shlex.split(command, comments=True)
        ended = subprocess.run(  # noqa: S603 (the README is ours)
            words, cwd=place, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=PATIENCE
        )
        assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
        assert ended.stdout + ended.stderr


def test_every_other_command_is_a_target_of_make() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if not line.startswith("synth-optimizers ")]
    commands = [shlex.split(line, comments=True) for line in lines]
    assert commands == [["make", "quickstart"], ["make", "test"]]
    for target in [*(target for _, target in commands), "wheel"]:
        subprocess.run(["make", "--dry-run", "--directory", ROOT, target], check=True, capture_output=True)  # noqa: S603, S607


def test_every_block_is_known_to_a_test() -> None:
    languages = re.findall(r"^```(.*)$", README, flags=re.MULTILINE)
    assert set(languages) == {"", "toml", "sh", "python"}
    assert len(blocks("toml")) == 1


def test_the_configuration_is_that_of_the_example(tmp_path: Path) -> None:
    (tmp_path / "gepa.toml").write_text(blocks("toml")[0], encoding="utf-8")

    def values(path: Path) -> dict[str, object]:
        known = {value.path: value.value for value in GepaConfig.from_toml(path).explain()}
        return {name: str(value).replace(str(path.parent), "") for name, value in known.items()}

    assert values(tmp_path / "gepa.toml") == values(EXAMPLE / "gepa.toml")


def test_the_picture_is_that_of_the_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    result = GepaRun.from_toml("gepa.toml").execute()
    assert Path(result.score_chart_path).read_text() == (ROOT / "docs" / "run.svg").read_text()


def test_the_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).is_file(), target


def test_the_variables_are_those_that_are_read() -> None:
    source = (ROOT / "rust/crates/synth_optimizer_platform/src/config/overrides.rs").read_text(encoding="utf-8")
    read = set(re.findall(r'variable: "(SYNTH_OPTIMIZERS_\w+)"', source))
    assert read
    assert set(re.findall(r"`(SYNTH_OPTIMIZERS_\w+)`", README)) == read
