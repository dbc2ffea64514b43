"""The bridge as one file, `bridge.pyz`, that any interpreter runs without installing anything."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "synth_optimizers_bridge"
MAIN = f"""import sys

if __name__ == "__main__":
    from {PACKAGE}.main import main

    sys.exit(main())
"""


def archive() -> Path:
    """Return the path of `bridge.pyz`: the shipped file, or one in the user's cache that is written if needed."""
    folder = Path(__file__).parent
    if folder.parent.is_file():
        return folder.parent
    contents = archive_bytes(folder)
    shipped = folder.parent / "bridge.pyz"
    if shipped.is_file() and shipped.read_bytes() == contents:
        return shipped
    # The sources of a checkout are newer than the file, or there is none.
    digest = hashlib.sha256(contents).hexdigest()[:16]
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "synth-optimizers"
        return write_archive(cache / f"bridge-{digest}.pyz", contents)
    except (OSError, RuntimeError):
        # There is no home that can be written to.
        return write_archive(Path(tempfile.mkdtemp(prefix="synth-optimizers-")) / "bridge.pyz", contents)


def archive_bytes(folder: Path) -> bytes:
    """Return the archive of a source folder. The same sources give the same bytes on every machine."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        _add(file, "__main__.py", MAIN.encode())
        for source in sorted(folder.rglob("*.py")):
            _add(file, f"{PACKAGE}/{source.relative_to(folder).as_posix()}", source.read_bytes())
    return b"#!/usr/bin/env python3\n" + buffer.getvalue()


def _add(file: zipfile.ZipFile, name: str, contents: bytes) -> None:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = 0o644 << 16
    entry.create_system = 3
    file.writestr(entry, contents)


def write_archive(path: Path, contents: bytes) -> Path:
    """Write the archive, unless it is there, so that a reader sees a whole file."""
    if path.is_file() and path.read_bytes() == contents:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".bridge-")
    with os.fdopen(handle, "wb") as file:
        file.write(contents)
    Path(temporary).chmod(0o644)
    Path(temporary).replace(path)
    return path
