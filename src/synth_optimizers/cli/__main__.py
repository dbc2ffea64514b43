"""`python -m synth_optimizers.cli`, for environments without the installed script."""

from synth_optimizers.cli import main

main()
