"""Serves a DSPy program: its texts are the instructions of its predictors, and a DSPy metric scores each row."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BridgeError, suggestion
from ..loading import LoadedObject, load_object
from ..rows import SourceRow, load_rows
from ..values import safe_repr
from .common import PresetFunction, PresetOptions, PresetTask, chosen_texts, described, framework, identifier, refuse

METRIC_ARGUMENTS = ("example", "prediction", "trace", "pred_name", "pred_trace")


class ProgramFunction(PresetFunction):
    """Runs a DSPy program on a row, with other instructions for its predictors, and calls the metric."""

    def __init__(self, program: Any, metric: Any, texts: Mapping[str, str], inputs: Sequence[str]) -> None:
        super().__init__(texts)
        self._dspy = framework("dspy", "dspy", "dspy")
        self._program = program
        self._metric = metric
        self._predictors = dict(texts)
        """The predictor of each text."""
        self._inputs = list(inputs)
        self._extra = [None] * max(0, len(_required(metric)) - 2)

    def __call__(self, /, row: dict[str, Any], **texts: str) -> dict[str, Any]:
        """Run a copy of the program, so that rollouts share no state."""
        dspy = self._dspy
        program = self._program.deepcopy()
        predictors = dict(program.named_predictors())
        for name, text in texts.items():
            predictor = predictors[self._predictors[name]]
            predictor.signature = predictor.signature.with_instructions(text)
        example = dspy.Example(**row).with_inputs(*self._inputs)
        # DSPy appends every call of a language model to the history of the modules that surround it.
        recorder = dspy.Module()
        with dspy.context(caller_modules=[recorder]):
            prediction = program(**example.inputs())
            verdict = self._metric(example, prediction, *self._extra)
        found = _verdict(verdict)
        found["output"] = _plain(prediction)
        found["trace"] = [_call(entry) for entry in recorder.history]
        found["usage"] = _usage(recorder.history)
        return found


def load(options: PresetOptions) -> PresetTask:
    """Load a program and a metric, and check that the rows have the program's inputs."""
    framework("dspy", "dspy", "dspy")
    refuse("--prompt", options.prompt, "dspy", "Choose predictors with --text NAME.")
    refuse("--skip-unsupported", options.skip_unsupported, "dspy", "It is about assertions of promptfoo.")
    if options.metric is None:
        raise BridgeError("metric_missing", "--metric is missing", "Name it as --metric file.py:NAME or module:NAME.")
    if options.rows is None:
        raise BridgeError("option_invalid", "--rows is missing", "Name the rows, such as --rows questions.csv.")
    loaded, metric = load_object(options.target, "program"), load_object(options.metric, "metric")
    program = _program(loaded)
    _check_metric(metric)
    predictors = _predictors(program, loaded.target)
    instructions = {name: predictor.signature.instructions for name, (_, predictor) in predictors.items()}
    texts = chosen_texts(instructions, options.texts, loaded.target, "Predictors")
    rows = load_rows(options.rows)
    inputs = _inputs(program, predictors, rows, loaded.target)
    paths = {name: predictors[name][0] for name in texts}
    factory = {"program": loaded.target, "metric": metric.target, "texts": paths, "inputs": inputs}
    columns = dict.fromkeys(name for row in rows for name in row.values)
    labels = [name for name in columns if name not in inputs and name.lower() not in ("id", "task_id", "split")]
    call = ProgramFunction(program, metric.value, paths, inputs)
    title = loaded.target.rpartition(":")[2]
    name = getattr(metric.value, "__name__", type(metric.value).__name__)
    function = described(call, __name__, factory, name, _place(metric), (loaded.file, metric.file))
    about = inspect.getdoc(type(program)) if type(program).__module__.partition(".")[0] != "dspy" else None
    warnings = _warnings(predictors, options.target)
    return PresetTask(function, options.rows, texts, labels, title, about, warnings, {})


def make(program: str, metric: str, texts: dict[str, str], inputs: list[str]) -> ProgramFunction:
    """Load the function in a worker process."""
    framework("dspy", "dspy", "dspy")
    return ProgramFunction(
        _program(load_object(program, "program")), load_object(metric, "metric").value, texts, inputs
    )


def _program(loaded: LoadedObject) -> Any:
    module: Any = framework("dspy", "dspy", "dspy").Module
    found = loaded.value
    if not isinstance(found, module) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise BridgeError(
                "program_kind",
                f"{loaded.target}() raised {type(error).__name__}: {error}",
                "Name a dspy.Module, or a class or function that makes one without arguments.",
            ) from error
    if not isinstance(found, module):
        raise BridgeError(
            "program_kind",
            f"{loaded.target} is {safe_repr(found, 80)}, not a dspy.Module",
            "Name a dspy.Module, or a class or function that makes one without arguments.",
        )
    return found


def _predictors(program: Any, target: str) -> dict[str, tuple[str, Any]]:
    """Return the name of each text with the name of its predictor and the predictor."""
    found: dict[str, tuple[str, Any]] = {}
    for path, predictor in program.named_predictors():
        if hasattr(getattr(predictor, "signature", None), "with_instructions"):
            # A program that is a predictor calls itself `self`.
            found[identifier("instructions" if path == "self" else path, found)] = (path, predictor)
    if not found:
        raise BridgeError(
            "program_predictors",
            f"{target} has no predictors, so it has no instructions to improve",
            "Make predictors such as dspy.Predict or dspy.ChainOfThought attributes of the module, in __init__.",
        )
    return found


def _inputs(
    program: Any, predictors: Mapping[str, tuple[str, Any]], rows: Sequence[SourceRow], target: str
) -> list[str]:
    """Return the columns that the program takes: the parameters of `forward`, or the inputs of its signature."""
    columns = list(dict.fromkeys(name for row in rows for name in row.values))
    # DSPy warns about `program.forward`.
    forward = getattr(type(program), "forward", None)
    if forward is None:
        raise BridgeError("program_kind", f"{target} has no method forward", "Define forward(self, ...) in its class.")
    parameters = list(inspect.signature(forward).parameters.values())[1:]
    named = [parameter for parameter in parameters if parameter.kind not in (_KINDS.VAR_KEYWORD, _KINDS.VAR_POSITIONAL)]
    if len(named) == len(parameters):
        needed = [parameter.name for parameter in named if parameter.default is parameter.empty]
        inputs = [parameter.name for parameter in named if parameter.name in needed or parameter.name in columns]
        what = "the parameter {!r} of forward"
    else:
        _, first = next(iter(predictors.values()))
        inputs = needed = list(first.signature.input_fields)
        what = "the input field {!r}"
    for name in needed:
        for row in rows:
            if name not in row.values:
                others = [column for column in columns if column not in needed]
                raise BridgeError(
                    "column_missing",
                    f"{row.place} has no column {name!r}, which is {what.format(name)} of {target}",
                    suggestion(name, others, "Columns") if name not in columns else "Add it to the row.",
                )
    if not inputs:
        raise BridgeError(
            "program_inputs",
            f"the program {target} takes no column of the rows",
            f"Give forward parameters named like columns: {', '.join(columns)}.",
        )
    return inputs


_KINDS = inspect.Parameter


def _required(metric: Any) -> list[inspect.Parameter]:
    """Return the parameters of a metric that it must be called with, and at least the example and the prediction."""
    positional = (_KINDS.POSITIONAL_ONLY, _KINDS.POSITIONAL_OR_KEYWORD)
    return [
        parameter
        for parameter in inspect.signature(metric).parameters.values()
        if parameter.default is parameter.empty and parameter.kind in positional
    ]


def _check_metric(metric: LoadedObject) -> None:
    hint = f"Write it as metric({', '.join(METRIC_ARGUMENTS[:2])}, trace=None); it returns a number or a bool."
    if isinstance(metric.value, type) or not callable(metric.value):
        raise BridgeError("metric_kind", f"{metric.target} is {safe_repr(metric.value, 80)}, not a function", hint)
    try:
        signature = inspect.signature(metric.value)
        required = _required(metric.value)
        signature.bind(*METRIC_ARGUMENTS[: max(2, len(required))])
    except (TypeError, ValueError) as error:
        raise BridgeError(
            "metric_signature", f"{metric.target} cannot be called with an example and a prediction: {error}", hint
        ) from error
    if len(required) > len(METRIC_ARGUMENTS):
        extra = ", ".join(parameter.name for parameter in required[len(METRIC_ARGUMENTS) :])
        raise BridgeError("metric_signature", f"{metric.target} has the unknown parameters {extra}", hint)
    if inspect.iscoroutinefunction(metric.value):
        raise BridgeError("metric_kind", f"{metric.target} is `async`, which DSPy's metrics are not", hint)


def _place(metric: LoadedObject) -> str:
    line = getattr(getattr(metric.value, "__code__", None), "co_firstlineno", None)
    name = Path(metric.file).name if metric.file else metric.target
    return f"{name}:{line}" if line else name


def _warnings(predictors: Mapping[str, tuple[str, Any]], target: str) -> list[str]:
    settings = sys.modules["dspy"].settings
    if settings.lm is None and any(getattr(predictor, "lm", None) is None for _, predictor in predictors.values()):
        return [f"no language model is configured: call dspy.configure(lm=...) at the top of the file of {target}"]
    return []


def _verdict(verdict: Any) -> dict[str, Any]:
    """Return the score and the feedback of a metric's result: a number, a bool, a mapping or a `dspy.Prediction`."""
    if isinstance(verdict, Mapping):
        return dict(verdict)
    store = getattr(verdict, "_store", None)
    if isinstance(store, Mapping) and "score" in store:
        return {key: store[key] for key in ("score", "feedback", "objectives") if key in store}
    return {"score": verdict}


def _plain(prediction: Any) -> Any:
    items = getattr(prediction, "items", None)
    return {str(key): value for key, value in items()} if callable(items) else prediction


def _call(entry: Mapping[str, Any]) -> dict[str, Any]:
    messages = entry.get("messages") or [{"role": "user", "content": entry.get("prompt")}]
    return {"model": entry.get("model"), "messages": messages, "outputs": entry.get("outputs")}


def _usage(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return tokens and cost of the calls. They are unknown if one call does not tell them, and 0 for cached calls."""
    totals: dict[str, float] = {}
    unknown: set[str] = set()
    for entry in history:
        is_cached = getattr(entry.get("response"), "cache_hit", False) is True
        usage = entry.get("usage") or {}
        values = {
            "prompt_tokens": usage.get("prompt_tokens", usage.get("input_tokens")),
            "completion_tokens": usage.get("completion_tokens", usage.get("output_tokens")),
            "cost_usd": entry.get("cost"),
        }
        for key, value in values.items():
            if is_cached:
                totals.setdefault(key, 0)
            elif isinstance(value, (int, float)):
                totals[key] = totals.get(key, 0) + value
            else:
                unknown.add(key)
    return {key: value for key, value in totals.items() if key not in unknown}
