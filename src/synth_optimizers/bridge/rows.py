"""Loads rows from files, Python objects and libraries of the user's interpreter.

The text of a CSV or TSV file stays text: `007` and `1e5` are not turned into numbers.
"""

from __future__ import annotations

import csv
import datetime
import importlib
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .errors import BridgeError
from .loading import load_object
from .values import clean_text, safe_repr, scalar_of

MAX_ROWS = 1_000_000
KINDS = "a .csv, .tsv, .json, .jsonl or .parquet file, file.py:rows, module:rows, or hf:NAME[:SPLIT]"


class SourceRow(NamedTuple):
    """A row and the place that it was read from, such as `tickets.csv:12`."""

    values: dict[str, Any]
    place: str


def load_rows(source: str | Iterable[Mapping[str, Any]]) -> list[SourceRow]:
    """Return all rows of a source: a list of mappings, or the name of a file, of a Python object or of a dataset."""
    name = source if isinstance(source, str) else "rows"
    rows: list[SourceRow] = []
    for row in _read(source) if isinstance(source, str) else _from_items(source, "rows"):
        rows.append(row)
        if len(rows) > MAX_ROWS:
            raise BridgeError(
                "rows_too_many", f"{name} has more than {MAX_ROWS} rows", "Take a sample: a run uses far fewer rows."
            )
    if not rows:
        raise BridgeError("rows_empty", f"{name} has no rows", "Give at least one train row and one held-out row.")
    return rows


def _read(source: str) -> Iterator[SourceRow]:
    if source.startswith("hf:"):
        return _from_hub(source)
    path = Path(source)
    reader = READERS.get(path.suffix.lower())
    if reader is not None:
        if not path.is_file():
            problem = "is a folder" if path.is_dir() else "does not exist"
            raise BridgeError("rows_not_found", f"{source} {problem}", f"Name {KINDS}.")
        return reader(path)
    if ":" in source:
        return _from_object(source)
    raise BridgeError("rows_kind", f"{source!r} is not a kind of rows that can be read", f"Name {KINDS}.")


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BridgeError("rows_not_found", f"{path} cannot be read: {error.strerror}", f"Name {KINDS}.") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BridgeError(
            "rows_encoding",
            f"{path}:{line} is not UTF-8 (byte {data[error.start]:#04x})",
            "Save the file as UTF-8.",
        ) from error


def _from_csv(path: Path, delimiter: str = ",") -> Iterator[SourceRow]:
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(io.StringIO(_text(path), newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    line = 1
    try:
        for values in reader:
            place, line = f"{path}:{line}", reader.line_num + 1
            if not values:
                continue
            if header is None:
                header = _header(values, place)
                continue
            if len(values) != len(header):
                raise BridgeError(
                    "rows_invalid",
                    f"{place} has {len(values)} values, but the header has {len(header)} columns",
                    "Put values that contain the separator or a newline into double quotes.",
                )
            yield SourceRow(dict(zip(header, values)), place)
    except csv.Error as error:
        raise BridgeError(
            "rows_invalid", f"{path}:{line} is not valid CSV: {error}", "Check the quotes around this line."
        ) from error


def _from_tsv(path: Path) -> Iterator[SourceRow]:
    return _from_csv(path, "\t")


def _header(names: list[str], place: str) -> list[str]:
    names = [name.strip() for name in names]
    for index, name in enumerate(names):
        if not name:
            raise BridgeError(
                "rows_header",
                f"column {index + 1} in the header at {place} has no name",
                "Name it, or remove it; pandas leaves an index out with to_csv(index=False).",
            )
        if name in names[:index]:
            raise BridgeError("rows_header", f"the header at {place} has two columns {name!r}", "Rename one of them.")
    return names


def _from_jsonl(path: Path) -> Iterator[SourceRow]:
    # Not `splitlines`, which also ends lines at characters that JSON texts may contain.
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            yield _row(_parse(line, path, number), f"{path}:{number}")


def _from_json(path: Path) -> Iterator[SourceRow]:
    found = _parse(_text(path), path, 1)
    if isinstance(found, dict):
        lists = [key for key, value in found.items() if isinstance(value, list)]
        if len(lists) != 1:
            named = ", ".join(map(repr, lists)) or "none"
            raise BridgeError(
                "rows_invalid",
                f"{path} is an object with {len(lists)} lists ({named}), so its rows are unclear",
                "Write a list of objects, or an object with exactly one list.",
            )
        found = found[lists[0]]
    if not isinstance(found, list):
        raise BridgeError(
            "rows_invalid", f"{path} is {_kind(found)}, not a list of objects", "Write a list of objects."
        )
    for index, value in enumerate(found):
        yield _row(value, f"{path}: entry {index}")


def _parse(text: str, path: Path, first_line: int) -> Any:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        place = f"{path}:{first_line + error.lineno - 1}:{error.colno}"
        raise BridgeError("rows_invalid", f"{place} is not JSON: {error.msg}", "Correct this line.") from error
    except (ValueError, RecursionError) as error:
        raise BridgeError("rows_invalid", f"{path}:{first_line} is not JSON: {error}", "Use null or a text.") from error


def _from_parquet(path: Path) -> Iterator[SourceRow]:
    readers: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("pyarrow.parquet", lambda library: library.read_table(str(path)).to_pylist()),
        ("polars", lambda library: library.read_parquet(str(path)).to_dicts()),
        ("pandas", lambda library: library.read_parquet(str(path)).to_dict("records")),
    )
    for name, read in readers:
        library = _library(name)
        if library is None:
            continue
        try:
            found = read(library)
        except Exception as error:
            raise BridgeError(
                "rows_invalid", f"{path} cannot be read with {name}: {error}", "Check that it is a parquet file."
            ) from error
        return _from_items(found, str(path), missing_is_none=True)
    raise BridgeError(
        "library_missing",
        f"{path} needs pyarrow, polars or pandas, and {sys.executable} has none of them",
        f"Run `{sys.executable} -m pip install pyarrow`, or save the rows as CSV or JSONL.",
    )


def _from_hub(source: str) -> Iterator[SourceRow]:
    _, _, rest = source.partition(":")
    name, _, split = rest.partition(":")
    if not name:
        raise BridgeError("rows_kind", f"{source!r} names no dataset", "Write hf:NAME or hf:NAME:SPLIT.")
    library = _library("datasets")
    if library is None:
        raise BridgeError(
            "library_missing",
            f"{source} needs the package datasets, and {sys.executable} does not have it",
            f"Run `{sys.executable} -m pip install datasets`, or save the rows as CSV or JSONL.",
        )
    try:
        found = library.load_dataset(name, split=split) if split else library.load_dataset(name)
    except Exception as error:
        raise BridgeError(
            "rows_not_found", f"{source} cannot be loaded: {error}", "Check the name, the split and the network."
        ) from error
    if not isinstance(found, Mapping):
        return _from_items(found, source, missing_is_none=True)
    if len(found) == 1:
        return _from_items(next(iter(found.values())), source, missing_is_none=True)
    joined = ({**row, "split": part} for part, rows in found.items() for row in rows)
    return _from_items(joined, source, missing_is_none=True)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _from_object(source: str) -> Iterator[SourceRow]:
    found = load_object(source, "rows").value
    if callable(found):
        try:
            found = found()
        except Exception as error:
            raise BridgeError(
                "rows_function", f"{source} raised {type(error).__name__}: {error}", "Correct the function."
            ) from error
    return _from_items(found, source)


def _from_items(found: Any, source: str, *, missing_is_none: bool = False) -> Iterator[SourceRow]:
    if callable(getattr(found, "to_dicts", None)):
        # A frame of polars.
        found, missing_is_none = found.to_dicts(), True
    elif type(found).__module__.partition(".")[0] == "pandas":
        found, missing_is_none = found.to_dict("records"), True
    if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Iterable):
        raise BridgeError(
            "rows_invalid", f"{source} is {_kind(found)}, not a list of mappings", "Give a list of dicts."
        )
    for index, value in enumerate(found):
        yield _row(value, f"{source}[{index}]", missing_is_none=missing_is_none)


def _row(value: Any, place: str, *, missing_is_none: bool = False) -> SourceRow:
    if not isinstance(value, Mapping):
        raise BridgeError("rows_invalid", f"{place} is {_kind(value)}, not an object", "Write every row as an object.")
    if not value:
        raise BridgeError("rows_invalid", f"{place} has no columns", "Remove the empty row.")
    for name in value:
        if not isinstance(name, str) or not name.strip():
            raise BridgeError("rows_invalid", f"{place} has a column named {name!r}", "Name columns with texts.")
    return SourceRow({name: _plain(item, f"{place}.{name}", missing_is_none) for name, item in value.items()}, place)


def _plain(value: Any, place: str, missing_is_none: bool) -> Any:
    """Return the JSON form of a value of a row."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        if missing_is_none and math.isnan(value):
            return None
        raise BridgeError("rows_invalid", f"{place} is {value}, which JSON does not have", "Use None or a text.")
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, f"{place}.{key}", missing_is_none) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{place}[{index}]", missing_is_none) for index, item in enumerate(value)]
    if isinstance(value, (datetime.date, datetime.datetime, datetime.time)):
        return value.isoformat()
    plain = scalar_of(value)
    if plain is not value and not isinstance(value, (bytes, bytearray)):
        return _plain(plain, place, missing_is_none)
    raise BridgeError(
        "rows_invalid",
        f"{place} is {safe_repr(value, 80)} ({type(value).__name__}), which JSON does not have",
        "Give texts, numbers, lists and objects; load anything else inside of the function.",
    )


def _kind(value: object) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list"}
    return names.get(type(value), f"an object of type {type(value).__name__}")


READERS = {
    ".csv": _from_csv,
    ".tsv": _from_tsv,
    ".json": _from_json,
    ".jsonl": _from_jsonl,
    ".ndjson": _from_jsonl,
    ".parquet": _from_parquet,
}
