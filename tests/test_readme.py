"""The examples of the README run as they stand there."""

import re
import subprocess
from pathlib import Path

import pytest

from synth_optimizers import GepaConfig

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gepa.toml").write_text(blocks("toml")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102 (the README is ours)


def test_every_toml_block_belongs_to_one_configuration(tmp_path: Path) -> None:
    path = tmp_path / "gepa.toml"
    path.write_text("\n".join(blocks("toml")), encoding="utf-8")
    config = GepaConfig.from_toml(path)
    assert {value.path: value.value for value in config.explain()}["proposer.backend"] == "openai_compatible"


def test_every_command_is_a_target_of_make() -> None:
    commands = re.findall(r"^make (\w+)", "\n".join(blocks("sh")), flags=re.MULTILINE)
    assert commands == ["test", "wheel", "bench"]
    for target in commands:
        subprocess.run(["make", "--dry-run", "--directory", ROOT, target], check=True, capture_output=True)  # noqa: S603, S607


def test_the_variables_are_those_that_are_read() -> None:
    source = (ROOT / "rust/crates/synth_optimizer_platform/src/config/overrides.rs").read_text(encoding="utf-8")
    read = set(re.findall(r'variable: "(SYNTH_OPTIMIZERS_\w+)"', source))
    assert read
    assert set(re.findall(r"`(SYNTH_OPTIMIZERS_\w+)`", README)) == read
