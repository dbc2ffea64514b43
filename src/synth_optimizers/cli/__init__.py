"""The command line `synth-optimizers`."""

import io
import sys


def main() -> None:
    """Run the command that the process was started with."""
    from synth_optimizers.cli.output import hold_streams

    hold_streams()
    from synth_optimizers.cli.app import run_command

    if isinstance(sys.stdout, io.TextIOWrapper):
        # Data has one encoding, whatever the locale; names that are no text keep their bytes.
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    sys.exit(run_command(sys.argv[1:]))
