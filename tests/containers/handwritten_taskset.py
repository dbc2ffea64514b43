"""A hand-written container: rows by task id, read from task."""

from __future__ import annotations

from handwritten import Handwritten
from serving import arguments, faults_of, serve

if __name__ == "__main__":
    args = arguments(__doc__)
    serve(Handwritten("taskset", args.mode, faults_of(args)).app(), args)
