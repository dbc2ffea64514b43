"""Serves the offline reflector of the cookbooks with the ideas of this example. It is no language model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cookbooks" / "optimizers" / "gepa"))

from ideas import propose
from shared.reflector import serve_reflector
from shared.serving import listening_options


def main() -> None:
    """Serve the reflector on loopback until the process ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    listening_options(parser)
    serve_reflector(propose, parser.parse_args())


if __name__ == "__main__":
    main()
