"""`runs export`: the artifacts of a run in one file, the same bytes each time."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import json
import os
import shutil
import tarfile
import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from synth_optimizers.cli.faults import Refusal
from synth_optimizers.cli.files import refuse_overwrite, write_file
from synth_optimizers.cli.output import say, write_json, write_text
from synth_optimizers.cli.words import counted

if TYPE_CHECKING:
    from synth_optimizers.cli.source import Files, RunSource

__all__ = ["export_run"]

TABLES = (".csv", ".jsonl")
ARCHIVES = (
    *(".zip", ".tgz", ".tar", ".gz", ".rar", ".7z", ".bz2", ".xz", ".zst", ".lz4", ".lzma", ".br"),
    *(".tar.gz", ".tbz", ".tbz2", ".txz", ".tzst", ".cab", ".iso", ".jar", ".zipx", ".txt", ".json", ".sqlite"),
)
"""Endings of files; whoever writes one, or nearly one, does not mean a directory."""
COLUMNS = (
    "candidate_id",
    "generation",
    "source",
    "parent_ids",
    "status",
    "minibatch_reward",
    "train_reward",
    "train_n",
    "heldout_reward",
    "heldout_n",
    "changed_fields",
    "rationale",
    "payload",
)


def export_run(run: RunSource, place: str, *, shape: str | None, force: bool, as_json: bool) -> None:
    """Write the artifacts of a run, or its candidates as a table."""
    out = Path(place)
    if shape is not None:
        _write_candidates(run, out, shape, force=force)
        return
    if str(out) == "-":
        raise Refusal("an archive is not written to stdout", "Name a file, or write candidates with --format.")
    kind = _kind(place)
    with tempfile.TemporaryDirectory(prefix="synth-optimizers-") as scratch:
        files = dict(run.files(Path(scratch)))
        top = run.name
        if kind == "tar":
            write_file(out, lambda file: _tar(files, top, file), force=force)
        elif kind == "zip":
            write_file(out, lambda file: _zip(files, top, file), force=force)
        else:
            _directory(files, out)
    if as_json:
        write_json({**run.identity(), "out": str(out), "files": sorted(files)})
    else:
        say(f"{out}: {counted(len(files), 'file')} of {run.place}")


def _kind(place: str) -> Literal["tar", "zip", "directory"]:
    """Return what is written at a place; a name that only looks like a file's is refused."""
    out = Path(place)
    name, ending = out.name.lower(), out.suffix.lower()
    if place.endswith(("/", os.sep)) or out.is_dir():
        return "directory"
    if name.endswith((".tar.gz", ".tgz")):
        return "tar"
    if ending == ".zip":
        return "zip"
    if ending in TABLES:
        raise Refusal(f"{out} is the name of a table", f"Add --format {ending[1:]} for the candidates alone.")
    if difflib.get_close_matches(ending, ARCHIVES, n=1, cutoff=0.75):
        hint = "Name a file that ends in .tar.gz or .zip, or a directory; with a slash at its end, any name is one."
        raise Refusal(f"{out} has no known ending", hint)
    return "directory"


def _tar(files: Files, top: str, out: BinaryIO) -> None:
    packed = gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0)
    with packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, (path, at) in files.items():
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime, entry.mode = path.stat().st_size, int(at), 0o644
            with path.open("rb") as content:
                archive.addfile(entry, content)


def _zip(files: Files, top: str, out: BinaryIO) -> None:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (path, at) in files.items():
            moment = datetime.fromtimestamp(max(at, 315532800), UTC).timetuple()[:6]
            entry = zipfile.ZipInfo(f"{top}/{name}", moment)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            with path.open("rb") as content, archive.open(entry, "w", force_zip64=True) as packed:
                shutil.copyfileobj(content, packed)


def _directory(files: Files, out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refusal(f"{out} exists and is not an empty directory", "Name a new directory.")
    for name, (path, _at) in files.items():
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _write_candidates(run: RunSource, out: Path, shape: str, *, force: bool) -> None:
    to_stdout = str(out) == "-"
    if not to_stdout:
        refuse_overwrite(out, force=force)
    rows = [_row(known) for known in run.summary()["candidates"]]
    text = _csv(rows) if shape == "csv" else "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if to_stdout:
        write_text(text, newline=False)
        return
    write_file(out, lambda file: file.write(text.encode()), force=force)
    say(f"{out}: {counted(len(rows), 'candidate')} of {run.place}")


def _row(known: dict[str, Any]) -> dict[str, Any]:
    counts = {f"{split}_n": (known[f"{split}_score"] or {}).get("n") for split in ("train", "heldout")}
    return {name: counts[name] if name in counts else known[name] for name in COLUMNS}


def _csv(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        values = [row[name] for name in COLUMNS]
        writer.writerow(
            [json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value for value in values]
        )
    return out.getvalue()
