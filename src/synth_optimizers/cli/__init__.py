"""The command line `synth-optimizers`."""

import io
import sys


def main() -> None:
    """Run the command that the process was started with."""
    from synth_optimizers.cli.output import reopen_closed_streams

    reopen_closed_streams()
    from synth_optimizers.cli.app import run_command

    if isinstance(sys.stdout, io.TextIOWrapper):
        # Data is always UTF-8, whatever the locale. File names that are not valid UTF-8 keep their bytes.
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    sys.exit(run_command(sys.argv[1:]))
