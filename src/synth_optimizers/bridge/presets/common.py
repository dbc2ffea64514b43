"""What the presets share: their options, their result, and their way to a framework and its files."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..archive import PACKAGE
from ..errors import BridgeError, suggestion
from ..function import ROW, Function


class PresetOptions(NamedTuple):
    """The options of the command line that a preset reads."""

    target: str
    rows: str | None = None
    metric: str | None = None
    texts: tuple[tuple[str, str | None], ...] = ()
    """Names of the texts to improve, each with its initial text unless that is the one that the framework has."""
    prompt: int | None = None
    skip_unsupported: bool = False


class PresetTask(NamedTuple):
    """A function, rows and texts, as `load_task` reads them."""

    function: Function
    rows: Any
    texts: dict[str, str]
    labels: list[str]
    """Columns that stay in the container unless the user names others."""
    name: str
    description: str | None
    warnings: list[str]
    placeholders: dict[str, list[str]]
    """What a proposal must keep of each text."""
    needs_processes: bool = False
    """Whether the framework runs only one rollout at a time in a process."""


class PresetFunction:
    """A function of a row and of the texts, for which other names are no parameters."""

    def __init__(self, texts: Iterable[str]) -> None:
        kinds = inspect.Parameter
        named = [kinds(name, kinds.KEYWORD_ONLY) for name in texts if name != ROW]
        self.__signature__ = inspect.Signature([kinds(ROW, kinds.POSITIONAL_OR_KEYWORD), *named])

    def __call__(self, row: dict[str, Any], **texts: str) -> Any:
        """Score one row."""
        raise NotImplementedError


def described(
    call: PresetFunction, module: str, factory: dict[str, Any], name: str, location: str, files: Iterable[str | None]
) -> Function:
    """Describe a preset's function. Workers make it again by calling `make` of the preset's module.

    The digest covers the files of the user, so that answers of another version are not reused.
    """
    digest = hashlib.sha256(repr(sorted(factory.items())).encode())
    for file in files:
        if file is not None:
            digest.update(b"\0" + Path(file).read_bytes())
    target = f"{PACKAGE}.presets.{module.rpartition('.')[2]}:make"
    documentation = inspect.getdoc(type(call))
    return Function(call, name, target, factory, location, digest.hexdigest(), False, documentation)


def framework(preset: str, module: str, package: str) -> Any:
    """Import a framework of the user's interpreter."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise _broken(module, package, error) from error
        raise BridgeError(
            "library_missing",
            f"--from {preset} needs the package {package}, and {sys.executable} does not have it",
            f"Run `{sys.executable} -m pip install {package}`, or choose the interpreter that has it.",
        ) from error
    except Exception as error:
        raise _broken(module, package, error) from error


def _broken(module: str, package: str, error: Exception) -> BridgeError:
    return BridgeError(
        "library_missing",
        f"{module} cannot be imported by {sys.executable}: {type(error).__name__}: {error}",
        f"Run `{sys.executable} -m pip install --upgrade {package}`.",
    )


def identifier(name: str, taken: Iterable[str]) -> str:
    """Return a valid and unused name of a text that is like `name`."""
    found = re.sub(r"\W+", "_", name).strip("_") or "text"
    found = f"text_{found}" if found[0].isdigit() or found == ROW else found
    used, count, base = set(taken), 2, found
    while found in used:
        found, count = f"{base}_{count}", count + 1
    return found


def chosen_texts(
    found: Mapping[str, str], wanted: Iterable[tuple[str, str | None]], place: str, kind: str = "Texts"
) -> dict[str, str]:
    """Return the texts that the user named with `--text`, or all of them."""
    chosen: dict[str, str] = {}
    for name, text in wanted:
        if name not in found:
            raise BridgeError("text_unknown", f"{place} has no text {name!r}", suggestion(name, found, kind))
        chosen[name] = found[name] if text is None else text
    return chosen or dict(found)


def refuse(option: str, value: object, preset: str, reason: str) -> None:
    """Refuse an option that a preset has no use for."""
    if value:
        raise BridgeError("option_invalid", f"{option} is given with --from {preset}", reason)
