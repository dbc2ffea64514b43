"""Serves a Python function and rows as a task container, with the standard library of Python 3.9 or newer only.

`serve` serves from threads of this process. `archive` returns the same code as one file, which any interpreter runs.
"""

from __future__ import annotations

from .archive import archive
from .errors import BridgeError
from .server import Server, serve
from .split import smallest_gain
from .task import BridgeTask, gain_sentence, load_task

__all__ = ["BridgeError", "BridgeTask", "Server", "archive", "gain_sentence", "load_task", "serve", "smallest_gain"]
