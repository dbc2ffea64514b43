"""Loads an object by the name `file.py:name` or `module:name`."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import BridgeError, suggestion

if TYPE_CHECKING:
    from types import CodeType, ModuleType


class LoadedObject(NamedTuple):
    """An object, the name that loads it again from any folder, and the file that defines it."""

    value: Any
    target: str
    file: str | None


def load_object(target: str, kind: str) -> LoadedObject:
    """Import the module or file of a target and return the named object. `kind` is used in messages."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        # Also `C:\evals.py` of other systems has no name after its last colon that could be one.
        raise BridgeError(
            f"{kind}_name",
            f"{target!r} does not name an object",
            f"Write file.py:NAME or module:NAME, such as evals.py:{'rows' if kind == 'rows' else 'evaluate'}.",
        )
    is_file = place.endswith(".py") or os.sep in place
    module = _load_file(Path(place), kind) if is_file else _load_module(place, kind)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [known for known in vars(module) if not known.startswith("_")]
            raise BridgeError(
                f"{kind}_not_found", f"{place} has no {name!r}", suggestion(name, known, f"Names in {place}")
            )
        found = getattr(found, part)
    file = getattr(module, "__file__", None)
    return LoadedObject(found, f"{Path(place).resolve()}:{name}" if is_file else target, file)


def forget_files() -> None:
    """Load every file again that is named from here on: it may have been edited."""
    _loaded_files.clear()


_loaded_files: dict[Path, ModuleType] = {}
"""The files that were loaded for the task at hand. A function and its rows may be in the same file."""


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Loads a file from its source. Byte code of an earlier version may have the same time and size."""

    def get_code(self, _fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _load_file(path: Path, kind: str) -> ModuleType:
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise BridgeError(f"{kind}_not_found", f"{path} {problem}", "Name a Python file and an object in it.")
    path = path.resolve()
    if path in _loaded_files:
        return _loaded_files[path]
    if path.suffix != ".py":
        raise BridgeError(f"{kind}_import", f"{path} is not a Python file", "Name a file that ends with .py.")
    # Modules beside the file can be imported, as if the file had been run.
    _search_first(str(path.parent))
    # A module that is already loaded, such as `json` or one that the user imported, keeps its name.
    known = getattr(sys.modules.get(path.stem), "__loader__", None)
    is_free = path.stem not in sys.modules or (isinstance(known, _SourceLoader) and known.path == str(path))
    name = path.stem if is_free else f"_bridge_{path.stem}"
    loader = _SourceLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(name, loader, origin=str(path)))
    module.__file__ = str(path)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise _import_error(error, str(path), kind) from error
    _loaded_files[path] = module
    return module


def _load_module(name: str, kind: str) -> ModuleType:
    _search_first(str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise BridgeError(
                f"{kind}_not_found",
                f"there is no module {name!r} in {Path.cwd()} or in {sys.executable}",
                "Name a file as file.py:NAME, or choose the interpreter that has the module.",
            ) from error
        raise _import_error(error, name, kind) from error
    except BaseException as error:
        raise _import_error(error, name, kind) from error


def _search_first(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _import_error(error: BaseException, place: str, kind: str) -> BridgeError:
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, SyntaxError):
        where, message = f"{error.filename}:{error.lineno}", error.msg
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_user_file(frame.filename)]
        where, message = (f"{frames[-1].filename}:{frames[-1].lineno}" if frames else place), str(error)
    hint = "Correct the file; `python` must be able to import it."
    if isinstance(error, ModuleNotFoundError):
        hint = f"Install it for {sys.executable}, or choose the interpreter that has it."
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return BridgeError(
        f"{kind}_import", f"{place} cannot be imported: {type(error).__name__}: {message} ({where})", hint, text
    )


OWN_FOLDER = str(Path(__file__).parent)


def is_user_file(name: str) -> bool:
    """Return whether a file of a traceback belongs neither to the bridge nor to the import system."""
    return not name.startswith(OWN_FOLDER) and not name.startswith("<frozen ")
