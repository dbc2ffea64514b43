"""`runs best`, `runs diff` and `runs export`: write the results of a run."""

import csv
import difflib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import click

from synth_optimizers.atomic_file import write_atomically
from synth_optimizers.cli.errors import CommandError, NotFoundError
from synth_optimizers.cli.formatting import did_you_mean, format_score, pluralize
from synth_optimizers.cli.options import json_option, run_argument
from synth_optimizers.cli.output import is_terminal, print_message, write_json, write_styled, write_text
from synth_optimizers.cli.source import Files, RunSource
from synth_optimizers.diff import Change, word_diff

CHANGE_FORMATS = {"same": "{}", "removed": "[-{}-]", "added": "{{+{}+}}"}
CHANGE_STYLES: dict[Change, dict[str, Any]] = {
    "same": {},
    "removed": {"fg": "red", "strikethrough": True},
    "added": {"fg": "green"},
}
TABLE_SUFFIXES = (".csv", ".jsonl")
ARCHIVE_SUFFIXES = (
    *(".zip", ".tgz", ".tar", ".gz", ".rar", ".7z", ".bz2", ".xz", ".zst", ".lz4", ".lzma", ".br"),
    *(".tar.gz", ".tbz", ".tbz2", ".txz", ".tzst", ".cab", ".iso", ".jar", ".zipx", ".txt", ".json", ".sqlite"),
)
"""File suffixes that name an archive. A path with such a suffix is never taken for a directory."""
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

force_option = click.option("--force", is_flag=True, help="Overwrite the file.")


@click.command()
@run_argument
@json_option
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write to a file instead of stdout.")
@click.option("--field", metavar="NAME", help="Only the text of this field.")
@click.option("--format", "shape", type=click.Choice(["text", "json"]), default=None, help="Texts or a JSON object.")
@force_option
def best(run: RunSource, as_json: bool, out: Path | None, field: str | None, shape: str | None, force: bool) -> None:
    """Write the texts of the best candidate."""
    found = run.best()
    if found is None:
        raise _no_best_candidate(run)
    texts = {str(name): str(text) for name, text in found["payload"].items()}
    if field is not None:
        if field not in texts:
            hint = f"{did_you_mean(field, texts)}Its fields are {', '.join(sorted(texts))}."
            raise CommandError(f"the best candidate has no field {field!r}", hint)
        texts = {field: texts[field]}
    if as_json or shape == "json":
        text = json.dumps(texts, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    elif len(texts) == 1:
        # A single text is written verbatim, ready to be read by a program.
        text = next(iter(texts.values()))
    else:
        text = "\n".join(f"# {name}\n{each.rstrip()}\n" for name, each in texts.items())
    if out is None:
        # A file or a pipe gets the bytes that --out writes; on a terminal, the prompt begins on a new line.
        write_text(text, newline=sys.stdout.isatty() and not text.endswith("\n"))
        return
    _write_file(out, lambda file: file.write(text.encode()), force=force)
    print_message(
        f"{out}: {', '.join(texts)} of {found['candidate_id']}, train {format_score(found.get('train_score'))}"
    )


def _no_best_candidate(run: RunSource) -> NotFoundError:
    return NotFoundError(
        f"the run in {run.place} has no best candidate: no candidate was evaluated",
        f"`synth-optimizers runs show {run.place}` shows its progress.",
    )


@click.command(short_help="Show the word changes between two candidates.")
@run_argument
@click.argument("candidates", nargs=-1, metavar="[CANDIDATE_A CANDIDATE_B]")
@json_option
def diff(run: RunSource, candidates: tuple[str, ...], as_json: bool) -> None:
    """Show the word changes from the initial to the best candidate, or between two candidates."""
    before, after = candidates_to_compare(run.summary(), candidates, run)
    fields = sorted({*before["payload"], *after["payload"]})
    changes = {name: word_diff(before["payload"].get(name, ""), after["payload"].get(name, "")) for name in fields}
    if as_json:
        pieces = {name: [{"change": change, "text": text} for change, text in diff] for name, diff in changes.items()}
        write_json({"before": before["candidate_id"], "after": after["candidate_id"], "fields": pieces})
        return
    print_message(f"{before['candidate_id']} -> {after['candidate_id']}")
    write_changes(changes)


def write_changes(changes: Mapping[str, list[tuple[Change, str]]]) -> None:
    """Write the word changes of each field: coloured on a terminal, marked in a file."""
    coloured = is_terminal(sys.stdout) and not os.environ.get("NO_COLOR")
    for name, found in changes.items():
        same = all(change == "same" for change, _ in found)
        write_text(f"# {name}" + (" (unchanged)" if same else ""))
        if coloured and not same:
            write_styled((text, CHANGE_STYLES[change]) for change, text in found)
        elif not same:
            write_text("".join(CHANGE_FORMATS[change].format(text) for change, text in found))


def candidates_to_compare(
    summary: dict[str, Any], names: tuple[str, ...], run: RunSource, best: str | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two named candidates, or the initial candidate and the best one. `best` names another one than that."""
    known = {candidate["candidate_id"]: candidate for candidate in summary["candidates"]}
    if len(names) == 2:
        return _find_candidate(known, names[0]), _find_candidate(known, names[1])
    if names:
        raise CommandError(
            f"only one candidate is named ({names[0]}); a diff needs two",
            "Name two candidates, or none to compare the initial with the best candidate.",
        )
    if best is not None:
        return summary["candidates"][0], _find_candidate(known, best)
    best_known = known.get(summary["overview"]["best_candidate_id"])
    if best_known is None:
        raise _no_best_candidate(run)
    return summary["candidates"][0], best_known


def _find_candidate(known: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """Find a candidate by its id or by a prefix of it."""
    found = [candidate_id for candidate_id in known if candidate_id == name]
    found = found or [candidate_id for candidate_id in known if candidate_id.removeprefix("gepa_").startswith(name)]
    if len(found) == 1:
        return known[found[0]]
    if found:
        raise CommandError(f"{name!r} is ambiguous: {' or '.join(found)}", "Use more characters of the id.")
    hint = f"{did_you_mean(name, known)}`synth-optimizers runs show` lists its candidates."
    raise CommandError(f"the run has no candidate {name!r}", hint)


@click.command()
@run_argument
@click.option(
    "--out",
    "place",  # Kept as typed: a slash at the end means a directory.
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="A .tar.gz, a .zip or a directory; - is stdout.",
)
@click.option("--format", "shape", type=click.Choice(["csv", "jsonl"]), help="Only the candidates, one line each.")
@force_option
@json_option
def export(run: RunSource, place: str, shape: str | None, force: bool, as_json: bool) -> None:
    """Pack the artifacts of a run, without its request cache.

    A service exports the result files. The logs of containers and the workspaces of the proposer
    stay in the run directory.
    """
    out = Path(place)
    if shape is not None:
        _write_candidates(run, out, shape, force=force)
        return
    if str(out) == "-":
        raise CommandError("stdout does not accept an archive", "Name a file, or write candidates with --format.")
    pack = _archive_writer(place)
    with tempfile.TemporaryDirectory(prefix="synth-optimizers-") as scratch:
        files = dict(run.files(Path(scratch)))
        if pack is None:
            _write_directory(files, out)
        else:
            _write_file(out, lambda file: pack(files, run.name, file), force=force)
    if as_json:
        write_json({run.kind: str(run.place), "out": str(out), "files": sorted(files)})
    else:
        print_message(f"{out}: {pluralize(len(files), 'file')} of {run.place}")


def _archive_writer(place: str) -> Callable[[Files, str, BinaryIO], None] | None:
    """Return the function that packs the archive of this name, or `None` for a directory. Refuse other suffixes."""
    out = Path(place)
    name, ending = out.name.lower(), out.suffix.lower()
    if place.endswith(("/", os.sep)) or out.is_dir():
        return None
    if name.endswith((".tar.gz", ".tgz")):
        return _write_tar
    if ending == ".zip":
        return _write_zip
    if ending in TABLE_SUFFIXES:
        raise CommandError(f"{out} has the suffix of a table", f"Add --format {ending[1:]} for the candidates alone.")
    if difflib.get_close_matches(ending, ARCHIVE_SUFFIXES, n=1, cutoff=0.75):
        hint = "Use a file with the suffix .tar.gz or .zip, or a directory with a trailing slash."
        raise CommandError(f"{out} has an unknown suffix", hint)
    return None


def _write_tar(files: Files, top: str, out: BinaryIO) -> None:
    """Pack the files reproducibly: the same files always produce the same bytes."""
    import gzip
    import tarfile

    packed = gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0)
    with packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, (path, at) in files.items():
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime, entry.mode = path.stat().st_size, int(at), 0o644
            with path.open("rb") as content:
                archive.addfile(entry, content)


def _write_zip(files: Files, top: str, out: BinaryIO) -> None:
    import zipfile

    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (path, at) in files.items():
            moment = datetime.fromtimestamp(max(at, 315532800), UTC).timetuple()[:6]
            entry = zipfile.ZipInfo(f"{top}/{name}", moment)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            with path.open("rb") as content, archive.open(entry, "w", force_zip64=True) as packed:
                shutil.copyfileobj(content, packed)


def _write_directory(files: Files, out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CommandError(f"{out} exists and is not an empty directory", "Name a new directory.")
    for name, (path, _at) in files.items():
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _write_candidates(run: RunSource, out: Path, shape: str, *, force: bool) -> None:
    to_stdout = str(out) == "-"
    if not to_stdout:
        _refuse_overwrite(out, force=force)
    rows = [_candidate_row(known) for known in run.summary()["candidates"]]
    text = _csv(rows) if shape == "csv" else "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if to_stdout:
        write_text(text, newline=False)
        return
    _write_file(out, lambda file: file.write(text.encode()), force=force)
    print_message(f"{out}: {pluralize(len(rows), 'candidate')} of {run.place}")


def _candidate_row(known: dict[str, Any]) -> dict[str, Any]:
    counts = {f"{split}_n": (known[f"{split}_score"] or {}).get("n") for split in ("train", "heldout")}
    return {name: counts[name] if name in counts else known[name] for name in COLUMNS}


def _csv(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        nested = {name: known for name, known in row.items() if isinstance(known, list | dict)}
        writer.writerow({**row, **{name: json.dumps(known, ensure_ascii=False) for name, known in nested.items()}})
    return out.getvalue()


def _refuse_overwrite(path: Path, *, force: bool) -> None:
    """Refuse to overwrite an existing file or directory without --force."""
    if path.is_dir():
        raise CommandError(f"{path} is a directory", "Name a file in it.")
    if path.exists() and not force:
        raise CommandError(f"{path} exists", "Name another file, or overwrite it with --force.")
    if not path.parent.is_dir():
        raise CommandError(
            f"the directory {path.parent} does not exist", "Create the directory, or choose another one."
        )


def _write_file(path: Path, write: Callable[[BinaryIO], object], *, force: bool) -> None:
    _refuse_overwrite(path, force=force)
    with write_atomically(path) as out:
        write(out)
