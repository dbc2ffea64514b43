"""Atomic writes: a file gets its final name only when it is complete."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def write_atomically(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file, and rename it to `path` when the block succeeds; delete it when the block raises."""
    name = path.parent / f".{path.name}.{uuid.uuid4().hex}"
    try:
        with name.open("x+b") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        name.replace(path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise
