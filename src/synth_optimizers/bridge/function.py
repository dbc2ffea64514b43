"""The user's function: which parameters it has, how it is called, and what its result means."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .errors import BridgeError, suggestion
from .loading import LoadedObject, is_user_file, load_object
from .rows import SourceRow
from .values import bounded_json, cut, safe_repr

ROW = "row"
POLICY = "policy"
MAX_FEEDBACK = 20_000
MAX_OUTPUT = 50_000
MAX_TRACE = 1_000_000
MAX_REWARD = 1e100
MAX_RETRY_AFTER = 3600
USAGE_KEYS = ("prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens", "cost_usd")


class Function(NamedTuple):
    """A function that scores one row, and where it comes from."""

    call: Any
    name: str
    target: str | None
    """What loads it in another process: `file.py:name` or `module:name`. `None` for a function of a notebook."""
    factory: dict[str, Any] | None
    """Set if the target is called with these arguments and returns the function."""
    location: str
    digest: str
    is_async: bool
    documentation: str | None


def load_function(target: str, factory: dict[str, Any] | None = None) -> Function:
    """Load a function by name. With `factory`, the named object is called with these arguments and returns it."""
    loaded = load_object(target, "function")
    if factory is None:
        return describe_function(loaded.value, loaded)
    made = loaded.value(**factory)
    return describe_function(made, loaded)._replace(factory=factory)


def describe_function(function: Any, loaded: LoadedObject | None = None) -> Function:
    """Check that an object can be called as a function of rows, and describe it."""
    inner = _unwrapped(function)
    name = getattr(inner, "__name__", None) or type(function).__name__
    place = loaded.target if loaded else name
    if inspect.isclass(function):
        raise BridgeError("function_kind", f"{place} is a class", "Name a function, or an object that can be called.")
    if not callable(function):
        raise BridgeError("function_kind", f"{place} is {safe_repr(function, 80)}, not a function", "Name a function.")
    code = inner if inspect.isroutine(inner) else type(inner).__call__
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise BridgeError(
            "function_kind", f"{place} is a generator: it yields instead of returning a score", "Return the score."
        )
    # A wrapper decides whether it must be awaited; the function inside is what its author wrote.
    is_async = inspect.iscoroutinefunction(code)
    code = inspect.unwrap(code)
    file = loaded.file if loaded else _file_of(code)
    line = getattr(getattr(code, "__code__", None), "co_firstlineno", None)
    shown = f"{_short(file)}:{line}" if file and line else _short(file) if file else "a function without a file"
    target = loaded.target if loaded else _target_of(function, file)
    digest = _source_digest(code, file, name)
    return Function(function, name, target, None, shown, digest, is_async, inspect.getdoc(inner))


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _file_of(code: Any) -> str | None:
    try:
        file = inspect.getsourcefile(code)
    except TypeError:
        return None
    # A notebook names its cells like files.
    return file if file and Path(file).is_file() and not file.startswith("<") else None


def _target_of(function: Any, file: str | None) -> str | None:
    name = getattr(function, "__qualname__", "<none>")
    if file is None or "<" in name or not inspect.isfunction(function):
        return None
    return f"{Path(file).resolve()}:{name}"


def _source_digest(code: Any, file: str | None, name: str) -> str:
    """Return a digest of the file that defines a function, or else of its source or its byte code."""
    try:
        source = Path(file).read_bytes() if file is not None else inspect.getsource(code).encode()
    except (OSError, TypeError):
        compiled = getattr(code, "__code__", None)
        source = (repr(compiled.co_consts) + compiled.co_code.hex()).encode() if compiled else name.encode()
    return hashlib.sha256(name.encode() + b"\0" + source).hexdigest()


def _short(file: str) -> str:
    try:
        short = os.path.relpath(file)
    except ValueError:
        return file
    return file if short.startswith("..") else short


class CallPlan(NamedTuple):
    """How the arguments of a call are made of texts and a row."""

    positional: list[str]
    named: list[str]
    takes_all: bool
    takes_policy: bool
    needs_policy: bool
    """Whether the parameter `policy` has no value of its own, so that a run without a policy passes an empty one."""
    texts: frozenset[str]
    parameters: list[str]

    def arguments(
        self, texts: Mapping[str, str], row: dict[str, Any], policy: Mapping[str, Any] | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the named arguments of a call. The row is a copy that the function may change."""
        positional = []
        for name in self.positional:
            if name not in texts and name != ROW and name not in row:
                break
            positional.append(self._value(name, texts, row))
        named = {
            name: self._value(name, texts, row) for name in self.named if name in texts or name == ROW or name in row
        }
        if self.takes_all:
            taken = {*self.positional, *self.named}
            rest = {name: value for name, value in {**row, **texts}.items() if name not in taken}
            named.update(rest)
        if self.takes_policy and (policy or self.needs_policy):
            named[POLICY] = dict(policy or {})
        return positional, named

    @staticmethod
    def _value(name: str, texts: Mapping[str, str], row: dict[str, Any]) -> Any:
        if name in texts:
            return texts[name]
        return dict(row) if name == ROW else row[name]


def plan_call(function: Function, texts: Mapping[str, str], rows: Sequence[SourceRow]) -> tuple[CallPlan, list[str]]:
    """Match the parameters with texts and columns. Returns the plan and warnings."""
    try:
        parameters = list(inspect.signature(function.call).parameters.values())
    except (TypeError, ValueError) as error:
        raise BridgeError(
            "function_signature", f"the parameters of {function.name} cannot be read", "Write a function around it."
        ) from error
    columns = list(dict.fromkeys(name for row in rows for name in row.values))
    positional: list[str] = []
    named: list[str] = []
    takes_all = takes_policy = needs_policy = False
    bound = function.call.keywords if isinstance(function.call, functools.partial) else {}
    required: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_all = True
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        name = parameter.name
        if name in texts or name == ROW or name in columns:
            (positional if parameter.kind is parameter.POSITIONAL_ONLY else named).append(name)
            if name not in texts and name != ROW and parameter.default is parameter.empty:
                required.append(name)
        elif name == POLICY and parameter.kind is not parameter.POSITIONAL_ONLY:
            takes_policy = name not in bound
            needs_policy = takes_policy and parameter.default is parameter.empty
        elif parameter.default is parameter.empty:
            raise _unknown_parameter(function, name, texts, columns)
    unused = [name for name in texts if name not in positional and name not in named]
    if unused and not takes_all:
        words = [parameter.name for parameter in parameters]
        raise BridgeError(
            "text_unused",
            f"{function.name} ({function.location}) has no parameter for the text {unused[0]!r}",
            suggestion(unused[0], [word for word in words if word not in texts], "Parameters"),
        )
    if not takes_all and ROW not in [*positional, *named] and not required and not _takes_column(named, columns, texts):
        raise BridgeError(
            "function_signature",
            f"{function.name} ({function.location}) takes nothing of the row",
            f"Add a parameter `row`, or parameters named like columns: {', '.join(columns)}.",
        )
    _check_required(function, required, rows)
    names = [parameter.name for parameter in parameters]
    plan = CallPlan(positional, named, takes_all, takes_policy, needs_policy, frozenset(texts), names)
    warnings = [
        f"{name!r} is both a text and a column: the parameter gets the text" for name in texts if name in columns
    ]
    if ROW in columns and ROW in [*positional, *named]:
        warnings.append("the parameter `row` gets the whole row, not the column of that name")
    return plan, warnings


def _takes_column(named: Sequence[str], columns: Sequence[str], texts: Mapping[str, str]) -> bool:
    return any(name in columns and name not in texts for name in named)


def _unknown_parameter(function: Function, name: str, texts: Mapping[str, str], columns: Sequence[str]) -> BridgeError:
    hint = suggestion(name, [*texts, *columns, ROW], "Texts and columns")
    return BridgeError(
        "function_signature",
        f"the parameter {name!r} of {function.name} ({function.location}) is neither a text nor a column",
        f"{hint} Texts are given with --text NAME=..., and a default value makes a parameter optional.",
    )


def _check_required(function: Function, required: Sequence[str], rows: Sequence[SourceRow]) -> None:
    for name in required:
        for row in rows:
            if name not in row.values:
                raise BridgeError(
                    "column_missing",
                    f"{row.place} has no column {name!r}, which {function.name} ({function.location}) needs",
                    f"Add it to the row, or give the parameter {name!r} a default value.",
                )


class ResultError(Exception):
    """A result that is not a score."""


def read_result(value: Any, name: str) -> dict[str, Any]:
    """Return `score` and what else a result contains, as JSON. Raises `ResultError` if it has no score."""
    if isinstance(value, Mapping):
        if "score" not in value:
            keys = ", ".join(map(str, value)) or "nothing"
            raise ResultError(f"{name} returned a mapping without 'score' (it has {keys})")
        parts = dict(value)
    elif isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise ResultError(f"{name} returned {len(value)} values, not a score or (score, feedback)")
        parts = {"score": value[0], "feedback": value[1]}
    else:
        parts = {"score": value}
    found: dict[str, Any] = {"score": _number(parts["score"], f"{name} returned", "score")}
    feedback = parts.get("feedback")
    if feedback is not None:
        found["feedback"] = bounded_json(feedback, MAX_FEEDBACK)
    objectives = parts.get("objectives")
    if objectives is not None:
        if not isinstance(objectives, Mapping):
            raise ResultError(f"{name} returned objectives that are {safe_repr(objectives, 80)}, not a mapping")
        found["objectives"] = {
            str(key): _number(item, f"{name} returned the objective {str(key)!r} as", str(key))
            for key, item in objectives.items()
        }
    usage = _usage(parts.get("usage"))
    if usage:
        found["usage"] = usage
    for key, limit in (("output", MAX_OUTPUT), ("trace", MAX_TRACE)):
        if parts.get(key) is not None:
            found[key] = bounded_json(parts[key], limit)
    return found


def _number(value: Any, subject: str, key: str) -> float:
    if value is None:
        raise ResultError(f"{subject} None, not a number" + (": is a return missing?" if key == "score" else ""))
    if isinstance(value, (str, bytes)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise ResultError(f"{subject} {safe_repr(value, 80)} ({type(value).__name__}), not a number")
    try:
        number = float(value)
    except Exception as error:
        raise ResultError(
            f"{subject} {safe_repr(value, 80)}, which is not one number: {cut(str(error), 200)}"
        ) from error
    if not math.isfinite(number) or abs(number) > MAX_REWARD:
        raise ResultError(f"{subject} {number!r}, not a finite number")
    return number


def _usage(given: Any) -> dict[str, Any]:
    """Return the usage that can be true. Everything else is unknown."""
    if not isinstance(given, Mapping):
        return {}
    found: dict[str, Any] = {}
    for key in USAGE_KEYS:
        value = given.get(key)
        if value is None or isinstance(value, (str, bytes)):
            continue
        try:
            number = float(value)
        except Exception:  # noqa: S112 - what is no number is unknown.
            continue
        if math.isfinite(number) and number >= 0:
            found[key] = number if key == "cost_usd" else int(number)
    return found


class Failure(NamedTuple):
    """Why a call has no score: one line for the run, and the traceback for the user."""

    message: str
    traceback: str | None = None
    retry_after: int | None = None
    """Set if the function asks to be called again after this many seconds."""


def describe_exception(error: BaseException) -> Failure:
    """Describe an exception with the place in the user's code, without frames of the bridge."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_user_file(frame.filename)]
    kind = type(error).__name__
    if isinstance(error, SystemExit):
        said = f"{kind}: the function called sys.exit({'' if error.code is None else safe_repr(error.code, 80)})"
    else:
        try:
            text = str(error)
        except Exception:
            text = "(its text cannot be shown)"
        said = f"{kind}: {cut(' '.join(text.split()), 500)}" if text else kind
    own = [frame for frame in frames if not _is_library(frame.filename)]
    place = (own or frames)[-1] if frames else None
    where = f" ({_short(place.filename)}:{place.lineno} in {place.name})" if place else ""
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
    try:
        lines += traceback.format_exception_only(type(error), error)
    except Exception:
        lines.append(f"{said}\n")
    return Failure(said + where, cut("".join(lines), 20_000), _retry_after(error))


def _retry_after(error: BaseException) -> int | None:
    """Return the whole seconds of the attribute `retry_after` of an exception, if it is a number that can be true."""
    try:
        found = getattr(error, "retry_after", None)
        seconds = float(found)  # type: ignore[arg-type]
    except Exception:
        return None
    if isinstance(found, bool):
        return None
    return min(math.ceil(seconds), MAX_RETRY_AFTER) if math.isfinite(seconds) and seconds >= 0 else None


def _is_library(name: str) -> bool:
    return name.startswith(("<", str(Path(sys.base_prefix, "lib")))) or f"{os.sep}site-packages{os.sep}" in name
