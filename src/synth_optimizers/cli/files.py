"""Files for people: written whole or not at all, and never over another one unasked."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from synth_optimizers.cli.faults import Refusal

__all__ = ["refuse_overwrite", "write_file"]


def refuse_overwrite(path: Path, *, force: bool) -> None:
    """Refuse a name that is taken, unless overwriting is asked for."""
    if path.is_dir():
        raise Refusal(f"{path} is a directory", "Name a file in it.")
    if path.exists() and not force:
        raise Refusal(f"{path} exists", "Name another file, or overwrite it with --force.")
    if not path.parent.is_dir():
        raise Refusal(
            f"there is no directory {path.parent} for {path.name}", "Make the directory, or name another one."
        )


def write_file(path: Path, write: Callable[[BinaryIO], object], *, force: bool) -> None:
    """Write a file under another name first, so that nobody sees half of it."""
    refuse_overwrite(path, force=force)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as out:
            write(out)
            out.flush()
            os.fsync(out.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
