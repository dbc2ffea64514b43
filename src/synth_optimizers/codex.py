"""The codex program of the extra `codex`."""

import importlib
import importlib.util


def codex_runtime() -> str | None:
    """Return the codex binary that the extra `codex` installs, if it is there."""
    if importlib.util.find_spec("codex_cli_bin") is None:
        return None
    return str(importlib.import_module("codex_cli_bin").bundled_codex_path())
