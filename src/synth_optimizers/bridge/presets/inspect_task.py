"""Serves an Inspect task: its samples are the rows, its scorer scores them, and its texts are its prompts.

A text is a parameter of the task function whose value reaches a solver, or the template of a solver such as
`system_message`. Every rollout is an eval of one sample. Inspect runs one eval at a time in a process, so rollouts run
in processes.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.metadata
import inspect
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BridgeError, suggestion
from ..loading import load_object
from ..values import canonical, cut, safe_repr, to_json
from .common import PresetFunction, PresetOptions, PresetTask, chosen_texts, described, framework, identifier, refuse

MODEL = "INSPECT_EVAL_MODEL"
TEMPLATE = "template"
VALUES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}
PLACEHOLDERS = ("prompt", "question", "choices", "letters")
"""What the templates of Inspect's solvers fill in."""
KEPT_TASKS = 8


class TextPlaces(NamedTuple):
    """Where the texts of a task are: parameters of its function, or templates of its solvers."""

    parameters: dict[str, str]
    templates: dict[str, int]
    """The place of each solver with a template in the chain."""
    texts: dict[str, str]


class TaskFunction(PresetFunction):
    """Evaluates one sample of an Inspect task, and reads the score of its scorer."""

    def __init__(self, function: Any, metric: str | None, texts: Sequence[str]) -> None:
        super().__init__(texts)
        self._function = function
        self._metric = metric
        self._tasks: dict[str, Any] = {}
        first = function()
        self._places = find_texts(function, first)
        self._samples = {canonical(row): sample for row, sample in _rows(first)}

    def __call__(self, /, row: dict[str, Any], **texts: str) -> dict[str, Any]:
        """Run an eval of one sample."""
        sample = self._samples.get(canonical(row))
        if sample is None:
            raise LookupError("the task no longer has this sample; is its dataset shuffled or sampled?")
        task = self._one_sample(self._task(texts), sample)
        folder = tempfile.mkdtemp(prefix="bridge-inspect-")
        try:
            model = {} if task.model is None or os.environ.get(MODEL) else {"model": None}
            log = framework("inspect", "inspect_ai", "inspect-ai").eval(
                task, display="none", log_dir=folder, epochs=1, fail_on_error=True, **model
            )[0]
            # The samples of a log are read when they are asked for.
            return read_log(log, self._metric)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _task(self, texts: Mapping[str, str]) -> Any:
        """Return the task of a candidate. Making one may read its dataset, so the last ones are kept."""
        key = canonical(texts)
        if key not in self._tasks:
            for name, text in texts.items():
                _check_plain(name, text)
            if len(self._tasks) >= KEPT_TASKS:
                del self._tasks[next(iter(self._tasks))]
            self._tasks[key] = with_texts(self._function, self._places, texts)
        return self._tasks[key]

    @staticmethod
    def _one_sample(task: Any, sample: Any) -> Any:
        found = copy.copy(task)
        found.dataset = importlib.import_module("inspect_ai.dataset").MemoryDataset([copy.deepcopy(sample)])
        return found


def load(options: PresetOptions) -> PresetTask:
    """Load a task function, find its texts, and read its samples."""
    framework("inspect", "inspect_ai", "inspect-ai")
    refuse("--rows", options.rows, "inspect", "The rows are the samples of the task.")
    refuse("--prompt", options.prompt, "inspect", "Choose texts with --text NAME.")
    refuse("--skip-unsupported", options.skip_unsupported, "inspect", "It is about assertions of promptfoo.")
    target, function, file = load_task_function(options.target)
    task = _made(function, target)
    places = find_texts(function, task)
    texts = chosen_texts(_default_texts(places, options.texts), options.texts, target)
    if not texts:
        known = [name for name, value in _text_parameters(function).items() if value]
        raise BridgeError(
            "text_missing",
            f"{target} has no text to improve: no solver has a template, and no text parameter reaches one",
            f"Give the task function a parameter such as system='...' and use it in system_message(system). "
            f"Name one with --text NAME. {suggestion('', known, 'Text parameters')}",
        )
    if task.model is None and not os.environ.get(MODEL):
        raise BridgeError("model_missing", f"{target} has no model, and ${MODEL} is not set", f"Set ${MODEL}.")
    if not task.scorer:
        raise BridgeError("scorer_missing", f"{target} has no scorer", "Give the Task a scorer.")
    rows = [row for row, _ in _rows(task)]
    if not rows:
        raise BridgeError("rows_empty", f"the dataset of {target} has no samples", "Add samples to the dataset.")
    factory = {"target": target, "metric": options.metric, "texts": list(texts)}
    call = TaskFunction(function, options.metric, list(texts))
    title = target.rpartition("@")[2]
    scorer = call_name(task.scorer[0])
    described_function = described(call, __name__, factory, scorer, Path(file).name, (file,))
    labels = [name for name in ("target", "metadata") if any(name in row for row in rows)]
    keys = {key for row in rows for key in (row.get("metadata") or {})}
    names = {
        name: [f"{{{key}}}" for key in (*PLACEHOLDERS, *sorted(keys)) if f"{{{key}}}" in texts[name]] for name in texts
    }
    about = inspect.getdoc(function)
    warnings = (
        []
        if len(task.scorer) == 1 or options.metric
        else [f"{target} has {len(task.scorer)} scorers: the first decides, the others are objectives; see --metric"]
    )
    return PresetTask(described_function, rows, texts, labels, title, about, warnings, names, needs_processes=True)


def make(target: str, metric: str | None, texts: list[str]) -> TaskFunction:
    """Make the function in a worker process."""
    # Every eval lists all installed packages, which takes longer than the rest of it.
    listed = getattr(importlib.metadata, "packages_distributions", None)
    if listed is not None:
        setattr(importlib.metadata, "packages_distributions", functools.lru_cache(maxsize=1)(listed))  # noqa: B010
    framework("inspect", "inspect_ai", "inspect-ai")
    return TaskFunction(load_task_function(target)[1], metric, texts)


def load_task_function(target: str) -> tuple[str, Any, str]:
    """Return the full name of a task, its function and its file. Without `@name`, a file must have one task."""
    path, _, name = target.partition("@")
    if not path.endswith(".py"):
        raise BridgeError(
            "task_name", f"{target!r} does not name a task", "Write file.py@NAME, such as task.py@support."
        )
    file = Path(path).resolve()
    # The import comes first: it has the errors of the file.
    module = load_object(f"{file}:__name__", "task")
    tasks = {key: value for key, value in vars(sys.modules[module.value]).items() if _is_task(value)}
    # A task may be registered under another name than that of its function.
    registered = {call_name(value): value for value in tasks.values()}
    if not tasks:
        raise BridgeError(
            "task_not_found", f"{path} has no tasks", "Decorate a function that returns a Task with @task."
        )
    if not name:
        if len(tasks) > 1:
            raise BridgeError(
                "task_name",
                f"{path} has several tasks: {', '.join(tasks)}",
                f"Name one, such as {path}@{next(iter(tasks))}.",
            )
        name = next(iter(tasks))
    tasks = {**registered, **tasks}
    if name not in tasks:
        raise BridgeError("task_not_found", f"{path} has no task {name!r}", suggestion(name, tasks, "Tasks"))
    return f"{file}@{name}", tasks[name], str(file)


def _is_task(value: Any) -> bool:
    if isinstance(value, type) or not callable(value):
        return False
    try:
        return bool(importlib.import_module("inspect_ai.util").registry_info(value).type == "task")
    except ValueError:
        return False


def _made(function: Any, target: str) -> Any:
    needed = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    if needed:
        raise BridgeError(
            "task_signature",
            f"{target} has the parameter {needed[0]!r} without a default",
            "Give every parameter of the task function a default value.",
        )
    try:
        task = function()
    except Exception as error:
        raise BridgeError(
            "task_failed", f"{target} raised {type(error).__name__}: {cut(str(error), 300)}", "Correct the task."
        ) from error
    if not hasattr(task, "dataset") or not hasattr(task, "solver"):
        raise BridgeError("task_kind", f"{target} returned {safe_repr(task, 80)}, not a Task", "Return a Task.")
    return task


def _text_parameters(function: Any) -> dict[str, str]:
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if isinstance(parameter.default, str)}


def _solvers(task: Any) -> list[Any]:
    solver = task.solver
    return list(solver) if isinstance(solver, Sequence) else [solver]


def _parameters_of(solver: Any) -> dict[str, Any]:
    """Return the arguments that a solver was made with; Inspect keeps them for its logs."""
    try:
        found = importlib.import_module("inspect_ai._util.registry").registry_params(solver)
    except (ImportError, AttributeError, ValueError):
        return {}
    return dict(found)


def call_name(value: Any) -> str:
    """Return the name of a solver or a scorer, without its package."""
    try:
        name = importlib.import_module("inspect_ai.util").registry_info(value).name
    except ValueError:
        name = getattr(value, "__name__", type(value).__name__)
    return str(name).rpartition("/")[2]


def find_texts(function: Any, task: Any) -> TextPlaces:
    """Find the parameters whose values reach a solver, and the solvers with a template."""
    solvers = _solvers(task)
    arguments = [_parameters_of(solver) for solver in solvers]
    used = "\n".join(_leaves(arguments))
    parameters = {
        name: value for name, value in _text_parameters(function).items() if value.strip() and value.strip() in used
    }
    texts = dict(parameters)
    templates: dict[str, int] = {}
    for index, found in enumerate(arguments):
        text = found.get(TEMPLATE)
        if not isinstance(text, str) or not text.strip() or any(value.strip() in text for value in parameters.values()):
            continue
        name = identifier(call_name(solvers[index]), {*texts, *_text_parameters(function)})
        templates[name] = index
        # A template may be the name of a file.
        texts[name] = importlib.import_module("inspect_ai.util").resource(text)
    return TextPlaces(_text_parameters(function), templates, texts)


def _leaves(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return []


def _default_texts(places: TextPlaces, wanted: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """Return the texts that were found. The user may also name a parameter that was not."""
    named = {name for name, _ in wanted}
    extra = {name: value for name, value in places.parameters.items() if name in named}
    return {**places.texts, **extra}


def with_texts(function: Any, places: TextPlaces, texts: Mapping[str, str]) -> Any:
    """Return the task with other texts."""
    task = function(**{name: text for name, text in texts.items() if name in places.parameters})
    changed = {places.templates[name]: text for name, text in texts.items() if name in places.templates}
    if changed:
        create = importlib.import_module("inspect_ai.util").registry_create
        registry = importlib.import_module("inspect_ai.util").registry_info
        solvers = _solvers(task)
        for index, text in changed.items():
            arguments = {**_parameters_of(solvers[index]), TEMPLATE: text}
            solvers[index] = create("solver", registry(solvers[index]).name, **arguments)
        chain = importlib.import_module("inspect_ai.solver").chain
        task = copy.copy(task)
        task.solver = chain(*solvers) if len(solvers) > 1 else solvers[0]
    return task


def _check_plain(name: str, text: str) -> None:
    """Refuse a text that Inspect would read as the name of a file or an address, and send its contents."""
    word = text.strip()
    # Unlike `Path.exists`, it returns false for a text that is too long for a name.
    if re.match(r"\w[\w+.-]*://\S*$", word) or os.path.exists(word):  # noqa: PTH110
        raise ValueError(f"the text {name!r} is the name of a file or an address: {cut(word, 80)}")


def _rows(task: Any) -> list[tuple[dict[str, Any], Any]]:
    found = []
    for sample in task.dataset:
        messages = sample.input
        row: dict[str, Any] = {
            "input": messages if isinstance(messages, str) else [_message(message) for message in messages],
            "target": sample.target,
        }
        if sample.id is not None:
            row["id"] = sample.id
        if sample.choices:
            row["choices"] = list(sample.choices)
        metadata = to_json(sample.metadata) if sample.metadata else {}
        if metadata:
            row["metadata"] = metadata
            if isinstance(metadata.get("split"), str):
                row["split"] = metadata["split"]
        found.append((row, sample))
    return found


def _message(message: Any) -> dict[str, Any]:
    return {"role": message.role, "content": message.text}


def read_log(log: Any, metric: str | None) -> dict[str, Any]:
    """Return the score, the feedback, the usage and the messages of the only sample of a log."""
    samples = log.samples or []
    error = (samples[0].error if samples else None) or log.error
    if error is not None or log.status != "success":
        raise RuntimeError(f"the eval failed: {cut(error.message if error else log.status, 500)}")
    sample = samples[0]
    scores = sample.scores or {}
    numbers: dict[str, float] = {}
    feedback: list[str] = []
    for name, score in scores.items():
        numbers.update(_numbers(name, score.value))
        if score.explanation:
            feedback.append(str(score.explanation) if len(scores) == 1 else f"{name}: {score.explanation}")
    if not numbers:
        raise ValueError(
            f"no score is a number: {safe_repr({name: score.value for name, score in scores.items()}, 200)}"
        )
    if metric is not None and metric not in numbers:
        raise LookupError(f"--metric is {metric!r}. {suggestion(metric, numbers, 'Scores')}")
    score = numbers[metric] if metric is not None else next(iter(numbers.values()))
    trace = [{**_message(message), **_tool_calls(message)} for message in sample.messages]
    output = sample.output.completion if sample.output else None
    return {
        "score": score,
        "feedback": "\n".join(feedback) or None,
        "objectives": numbers if len(numbers) > 1 else None,
        "output": output,
        "usage": _usage(sample.model_usage or {}),
        "trace": trace,
    }


def _tool_calls(message: Any) -> dict[str, Any]:
    calls = getattr(message, "tool_calls", None) or []
    found = [{"function": call.function, "arguments": to_json(call.arguments)} for call in calls]
    return {"tool_calls": found} if found else {}


def _numbers(name: str, value: Any) -> dict[str, float]:
    """Return the numbers of a score. A mapping has one for each key, a list only its mean."""
    if isinstance(value, Mapping):
        nested = ((f"{key}", _numbers(f"{key}", item)) for key, item in value.items())
        return {key: number for _, found in nested for key, number in found.items()}
    if isinstance(value, (list, tuple)):
        parts = [number for item in value for number in _numbers(name, item).values()]
        return {name: sum(parts) / len(parts)} if parts else {}
    if isinstance(value, str):
        word = value.strip()
        known = VALUES.get(word, VALUES.get(word.lower()))
        try:
            return {name: float(word) if known is None else known}
        except ValueError:
            return {}
    return {name: float(value)} if isinstance(value, (bool, int, float)) else {}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens of all models together, and their cost if Inspect knows that of each."""
    found: dict[str, Any] = {
        "prompt_tokens": sum(
            (model.input_tokens or 0)
            + (getattr(model, "input_tokens_cache_read", 0) or 0)
            + (getattr(model, "input_tokens_cache_write", 0) or 0)
            for model in usage.values()
        ),
        "completion_tokens": sum(model.output_tokens or 0 for model in usage.values()),
    }
    costs = [getattr(model, "total_cost", None) for model in usage.values()]
    if costs and all(isinstance(cost, (int, float)) for cost in costs):
        found["cost_usd"] = sum(costs)
    return found if usage else {}
