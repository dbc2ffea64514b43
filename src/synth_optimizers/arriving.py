"""Files that arrive: under another name first, so that nobody sees half of one."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def arriving(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes its name when the block ends well."""
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
