"""A hand-written container: both dialects are advertised, and rows are read from dataset_row only."""

from __future__ import annotations

from handwritten import Handwritten
from serving import arguments, faults_of, serve

if __name__ == "__main__":
    args = arguments(__doc__)
    serve(Handwritten("both", args.mode, faults_of(args)).app(), args)
