"""`python -m synth_optimizers.cli`, for places where the script is not installed."""

from synth_optimizers.cli import main

main()
