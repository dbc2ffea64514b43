"""Presets: what a framework calls a program, a config or a task becomes a function, rows and texts of the bridge.

A preset imports its framework only when it is chosen, so that the bridge itself needs none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ..errors import BridgeError
from .common import PresetOptions, PresetTask

if TYPE_CHECKING:
    from collections.abc import Callable

PRESETS = {"dspy": "dspy_program", "inspect": "inspect_task", "promptfoo": "promptfoo_config"}
"""The module of each preset."""

__all__ = ["PRESETS", "PresetOptions", "PresetTask", "load_preset"]


def load_preset(name: str, options: PresetOptions) -> PresetTask:
    """Load what a framework's user has. Raises `BridgeError` for everything that the user can fix."""
    if name not in PRESETS:
        raise BridgeError("option_invalid", f"--from is {name!r}", f"Write one of {', '.join(PRESETS)}.")
    load: Callable[[PresetOptions], PresetTask] = importlib.import_module(f".{PRESETS[name]}", __package__).load
    return load(options)
