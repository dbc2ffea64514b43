"""A hand-written container: rows by seed, read from dataset_row."""

from __future__ import annotations

from handwritten import HandwrittenContainer
from serving import arguments, faults_from_arguments, serve

if __name__ == "__main__":
    args = arguments(__doc__)
    serve(HandwrittenContainer("dataset", args.mode, faults_from_arguments(args)).app(), args)
