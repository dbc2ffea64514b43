"""Evaluates promptfoo's assertions that need neither Node nor a model."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BridgeError
from ..loading import load_object
from ..values import cut, safe_repr
from .templates import render_all, shown

ASSERT_SET = "assert-set"
DEFAULT_DISTANCE = 5
"""The edits that `levenshtein` allows without a threshold."""


class Verdict(NamedTuple):
    """The result of an assertion."""

    passed: bool
    score: float
    reason: str


Check = Callable[[str, Any, Mapping[str, Any]], Verdict]


def _say(passed: bool, expected: str) -> Verdict:
    return Verdict(passed, float(passed), "" if passed else f"Expected output {expected}")


def _equals(output: str, value: Any, _: Mapping[str, Any]) -> Verdict:
    if isinstance(value, (Mapping, list)):
        return _say(_parsed(output) == value, f"to equal {cut(shown(value), 500)}")
    return _say(output == shown(value), f"to equal {cut(shown(value), 500)!r}")


def _contains(output: str, value: Any, _: Mapping[str, Any]) -> Verdict:
    return _say(shown(value) in output, f"to contain {shown(value)!r}")


def _icontains(output: str, value: Any, _: Mapping[str, Any]) -> Verdict:
    return _say(shown(value).lower() in output.lower(), f"to contain {shown(value)!r}")


def _of_list(count: Callable[[list[bool]], bool], words: str, *, ignores_case: bool) -> Check:
    def check(output: str, value: Any, _: Mapping[str, Any]) -> Verdict:
        items = [shown(item) for item in (value if isinstance(value, list) else str(value).split(","))]
        items = [item.strip() for item in items] if not isinstance(value, list) else items
        text = output.lower() if ignores_case else output
        found = [(item.lower() if ignores_case else item) in text for item in items]
        missing = [item for item, is_there in zip(items, found) if not is_there]
        return _say(count(found), f"to contain {words} {', '.join(map(repr, missing))}")

    return check


def _starts_with(output: str, value: Any, _: Mapping[str, Any]) -> Verdict:
    return _say(output.startswith(shown(value)), f"to start with {shown(value)!r}")


def _regex(output: str, value: Any, _: Mapping[str, Any]) -> Verdict:
    return _say(compiled(shown(value)).search(output) is not None, f"to match regex {shown(value)!r}")


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of JavaScript, whose named groups are written in another way."""
    return re.compile(re.sub(r"\(\?<(?=[A-Za-z_])", "(?P<", pattern))


def _is_json(output: str, value: Any, _: Mapping[str, Any]) -> Verdict:
    found = _parsed(output)
    if found is _NOTHING:
        return _say(False, "to be valid JSON")
    return _follows(found, value)


def _contains_json(output: str, value: Any, _: Mapping[str, Any]) -> Verdict:
    decoder, problem = json.JSONDecoder(), _say(False, "to contain valid JSON")
    for match in re.finditer(r"[\[{]", output):
        try:
            found, _end = decoder.raw_decode(output, match.start())
        except ValueError:
            continue
        verdict = _follows(found, value)
        if verdict.passed:
            return verdict
        problem = verdict
    return problem


def _follows(found: Any, schema: Any) -> Verdict:
    if not schema:
        return _say(True, "")
    library = importlib.import_module("jsonschema")
    try:
        library.validate(found, _parsed(schema) if isinstance(schema, str) else schema)
    except library.ValidationError as error:
        return _say(False, f"to follow the JSON schema: {error.message}")
    return _say(True, "")


_NOTHING = object()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _NOTHING


def _levenshtein(output: str, value: Any, assertion: Mapping[str, Any]) -> Verdict:
    limit = assertion.get("threshold", DEFAULT_DISTANCE)
    found = distance(output, shown(value))
    return _say(found <= limit, f"to be at most {limit} edits from {shown(value)!r}, but it is {found}")


def distance(first: str, second: str) -> int:
    """Return the smallest number of edits between two texts."""
    row = list(range(len(second) + 1))
    for index, letter in enumerate(first, 1):
        previous, row[0] = row[0], index
        for column, other in enumerate(second, 1):
            previous, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, previous + (letter != other))
    return row[-1]


CHECKS: dict[str, Check] = {
    "equals": _equals,
    "contains": _contains,
    "icontains": _icontains,
    "contains-any": _of_list(any, "one of", ignores_case=False),
    "contains-all": _of_list(all, "all of", ignores_case=False),
    "icontains-any": _of_list(any, "one of", ignores_case=True),
    "icontains-all": _of_list(all, "all of", ignores_case=True),
    "starts-with": _starts_with,
    "regex": _regex,
    "is-json": _is_json,
    "contains-json": _contains_json,
    "levenshtein": _levenshtein,
}
NEEDS_NO_VALUE = ("is-json", "contains-json")
NEEDS_NODE = ("javascript",)
DEPENDS_ON_THE_RUN = ("cost", "latency", "perplexity", "perplexity-score")


def why_unsupported(assertion: Mapping[str, Any]) -> str | None:
    """Return why an assertion cannot be evaluated here, or `None`."""
    kind = str(assertion.get("type"))
    plain = kind[4:] if kind.startswith("not-") else kind
    if plain in NEEDS_NODE:
        return "needs Node"
    if plain in DEPENDS_ON_THE_RUN:
        return "depends on the call, not on the answer"
    if plain in NEEDS_NO_VALUE and assertion.get("value"):
        try:
            importlib.import_module("jsonschema")
        except ImportError:
            return "with a schema needs the package jsonschema"
    if plain in CHECKS or plain == "python" or kind == ASSERT_SET:
        return None
    return "needs a model or a service"


def check_assertion(assertion: Any, place: str, folder: Path) -> None:
    """Raise for an assertion that is not written as promptfoo reads it. Files of assertions are loaded."""
    if not isinstance(assertion, Mapping) or not isinstance(assertion.get("type"), str):
        raise BridgeError(
            "assert_invalid",
            f"{place}: the assertion {safe_repr(assertion, 80)} has no type",
            "Write it as an object with type and value, such as {type: contains, value: refund}.",
        )
    kind = assertion["type"]
    plain = kind[4:] if kind.startswith("not-") else kind
    if kind == ASSERT_SET:
        if not isinstance(assertion.get("assert"), list) or not assertion["assert"]:
            raise BridgeError("assert_invalid", f"{place}: assert-set has no `assert`", "List its assertions there.")
        for inner in assertion["assert"]:
            check_assertion(inner, place, folder)
        return
    needs_value = plain == "python" or (plain in CHECKS and plain not in NEEDS_NO_VALUE)
    if needs_value and assertion.get("value") is None:
        raise BridgeError("assert_invalid", f"{place}: {kind} has no value", "Add `value`.")
    for key in ("weight", "threshold"):
        number = assertion.get(key, 1)
        if isinstance(number, bool) or not isinstance(number, (int, float)) or number < 0:
            raise BridgeError("assert_invalid", f"{place}: {key} of {kind} is {number!r}", "Write a number from 0.")
    if "transform" in assertion:
        raise BridgeError("assert_invalid", f"{place}: {kind} has a transform", "Check the answer as it is.")
    if plain == "regex" and "{{" not in str(assertion["value"]):
        try:
            compiled(shown(assertion["value"]))
        except re.error as error:
            raise BridgeError(
                "assert_invalid", f"{place}: {assertion['value']!r} is not a regex: {error}", "Correct it."
            ) from error
    if plain == "python":
        _python(shown(assertion["value"]), folder, place)


def evaluate(output: str, assertion: Mapping[str, Any], context: Mapping[str, Any], folder: Path) -> Verdict:
    """Evaluate one assertion; `not-` inverts it."""
    kind = str(assertion["type"])
    if kind == ASSERT_SET:
        return combine(output, assertion["assert"], assertion.get("threshold"), context, folder)[0]
    is_inverted = kind.startswith("not-")
    plain = kind[4:] if is_inverted else kind
    if plain == "python":
        verdict = _run_python(output, assertion, context, folder)
    else:
        value = render_all(assertion.get("value"), context["vars"])
        verdict = CHECKS[plain](output, value, assertion)
    if is_inverted:
        reason = (
            "" if not verdict.passed else f"Expected output not to pass {plain} {cut(str(assertion['value']), 200)}"
        )
        return Verdict(not verdict.passed, 1 - verdict.score, reason)
    return verdict


def combine(
    output: str, assertions: list[Any], threshold: float | None, context: Mapping[str, Any], folder: Path
) -> tuple[Verdict, dict[str, float]]:
    """Return the weighted verdict of several assertions, and the mean score of each named metric."""
    total = weights = 0.0
    passed, reasons = True, []
    metrics: dict[str, list[float]] = {}
    for assertion in assertions:
        verdict = evaluate(output, assertion, context, folder)
        weight = float(assertion.get("weight", 1))
        total += verdict.score * weight
        weights += weight
        passed = passed and (verdict.passed or not weight)
        if verdict.reason:
            reasons.append(verdict.reason)
        if assertion.get("metric"):
            metrics.setdefault(str(assertion["metric"]), []).append(verdict.score)
    score = total / weights if weights else 1.0
    if threshold is not None:
        passed = score >= threshold
    means = {name: sum(scores) / len(scores) for name, scores in metrics.items()}
    return Verdict(passed, score, "\n".join(reasons)), means


def _python(value: str, folder: Path, place: str) -> Callable[[str, Any], Any]:
    """Return the function of an inline expression, of inline lines that return, or of `file://x.py:name`."""
    if value.startswith("file://"):
        path, _, name = value[len("file://") :].partition(":")
        found = load_object(f"{folder / path}:{name or 'get_assert'}", "assert").value
        if not callable(found):
            raise BridgeError("assert_kind", f"{place}: {value} is not a function", "Name a function.")
        call: Callable[[str, Any], Any] = found
        return call
    try:
        code = compile(value.strip(), "<python assertion>", "eval")
    except SyntaxError:
        source = f"def check(output, context):\n{textwrap.indent(textwrap.dedent(value).strip(), '    ')}\n"
        scope: dict[str, Any] = {}
        try:
            exec(compile(source, "<python assertion>", "exec"), scope)  # noqa: S102 - the user's own code.
        except SyntaxError as error:
            raise BridgeError(
                "assert_invalid", f"{place}: {cut(value, 80)!r} is not Python: {error.msg}", "Correct the assertion."
            ) from error
        checked: Callable[[str, Any], Any] = scope["check"]
        return checked
    return lambda output, context: eval(code, {"output": output, "context": context})  # noqa: S307


def _run_python(output: str, assertion: Mapping[str, Any], context: Mapping[str, Any], folder: Path) -> Verdict:
    value = shown(assertion["value"])
    # Variables in a file's name would load other files for each row.
    inline = value if value.startswith("file://") else render_all(value, context["vars"], keep_unknown=True)
    found = _python(inline, folder, "python assertion")(output, dict(context, config=assertion.get("config", {})))
    if inspect.isawaitable(found):
        found = asyncio.run(_awaited(found))
    threshold = assertion.get("threshold")
    reason, passed, score = "", None, found
    if isinstance(found, Mapping):
        reason = str(found.get("reason") or "")
        passed = found.get("pass", found.get("pass_"))
        score = found.get("score", passed)
    if isinstance(score, str) and score.strip().lower() in ("true", "false"):
        score = score.strip().lower() == "true"
    if not isinstance(score, (bool, int, float)):
        raise TypeError(f"the python assertion returned {safe_repr(found, 80)}, not a bool, a number or pass and score")
    if passed is None:
        passed = score >= threshold if threshold is not None else score > 0
    elif threshold is not None:
        passed = bool(passed) and score >= threshold
    reason = reason or ("" if passed else f"Python assertion failed: {cut(value, 200)}")
    return Verdict(bool(passed), float(score), reason)


async def _awaited(found: Any) -> Any:
    return await found
