"""Loads the package of a tracker when it is needed, and says which extra brings it."""

from __future__ import annotations

import importlib
from typing import Any

from synth_optimizers.errors import ConfigError


def load(module: str, name: str, *, extra: str) -> Any:  # noqa: ANN401 (a module whose types only its users know)
    """Return a module that must have a name. One without it is a directory that happens to be called the same."""
    try:
        found = importlib.import_module(module)
        getattr(found, name)
    except (ImportError, AttributeError) as problem:
        package = module.partition(".")[0]
        error = refused(f"tracking with {extra} needs the package {package}", install(extra))
        error.detail = str(problem)
        raise error from problem
    return found


def install(extra: str) -> str:
    """Return the hint that names an extra."""
    return f'pip install "synth-optimizers[{extra}]"'


def refused(message: str, hint: str) -> ConfigError:
    """Return the error for a tracker that cannot be used as it is set up."""
    error = ConfigError(f"{ConfigError.error_code}: {message}")
    error.hint = hint
    return error
