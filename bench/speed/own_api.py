"""Runs this product once through its Python interface and writes what it has used.

Usage: python own_api.py CONFIG
"""

from __future__ import annotations

import sys

from marks import Marks

from synth_optimizers import GepaRun


def main() -> None:
    """Execute the configuration."""
    marks = Marks()
    result = GepaRun.from_toml(sys.argv[1]).execute()
    del result
    marks.write()


if __name__ == "__main__":
    main()
