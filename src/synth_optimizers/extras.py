"""The packages of the extras, each loaded when it is needed."""

import importlib
import importlib.util
from typing import Any

from synth_optimizers.errors import ConfigError, error_of


def load(module: str, name: str, *, extra: str, purpose: str) -> Any:  # noqa: ANN401 (only its users know its types)
    """Return a module that must have a name. One without it is a directory that happens to be called the same."""
    try:
        found = importlib.import_module(module)
        getattr(found, name)
    except (ImportError, AttributeError) as problem:
        message = f"{purpose} needs the package {module.partition('.')[0]}"
        raise error_of(ConfigError, message, install(extra), str(problem)) from problem
    return found


def install(extra: str) -> str:
    """Return the hint that names an extra."""
    return f'pip install "synth-optimizers[{extra}]"'


def codex_runtime() -> str | None:
    """Return the codex binary that the extra `codex` installs, if it is there."""
    if importlib.util.find_spec("codex_cli_bin") is None:
        return None
    return str(importlib.import_module("codex_cli_bin").bundled_codex_path())
