"""The version is the same in all places."""

import importlib.metadata
import tomllib
from pathlib import Path

import synth_optimizers

ROOT = Path(__file__).parent.parent


def test_the_version_matches_the_package() -> None:
    assert synth_optimizers.__version__ == importlib.metadata.version("synth-optimizers")


def test_the_version_matches_the_cargo_workspace() -> None:
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    assert synth_optimizers.__version__ == workspace["package"]["version"]
