"""The command line `synth-optimizers`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that the process was started with."""
    from synth_optimizers.cli.app import run_command

    sys.exit(run_command(sys.argv[1:]))
