"""A hand-written container: both dialects are advertised, and rows are read from dataset_row only."""

from __future__ import annotations

from handwritten import HandwrittenContainer
from serving import arguments, faults_from_arguments, serve

if __name__ == "__main__":
    args = arguments(__doc__)
    serve(HandwrittenContainer("both", args.mode, faults_from_arguments(args)).app(), args)
