"""Imports the packages of the optional extras on demand."""

import importlib
import importlib.util
from typing import Any

from synth_optimizers.errors import ConfigError, error_of


def load(module: str, name: str, *, extra: str, purpose: str) -> Any:  # noqa: ANN401 (a module has no static type)
    """Import a module that must define `name`. A module without it is an unrelated directory of the same name."""
    try:
        found = importlib.import_module(module)
        getattr(found, name)
    except (ImportError, AttributeError) as problem:
        message = f"{purpose} requires the package {module.partition('.')[0]}"
        raise error_of(ConfigError, message, install(extra), str(problem)) from problem
    return found


def install(extra: str) -> str:
    """Return the hint that says how to install an extra."""
    return f'pip install "synth-optimizers[{extra}]"'


def codex_runtime() -> str | None:
    """Return the path of the codex binary that the extra `codex` installs; `None` without the extra."""
    if importlib.util.find_spec("codex_cli_bin") is None:
        return None
    return str(importlib.import_module("codex_cli_bin").bundled_codex_path())
