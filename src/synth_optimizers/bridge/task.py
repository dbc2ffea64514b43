"""The task that a bridge serves: a function, its texts and its rows; and the documents of the container contract."""

from __future__ import annotations

import hashlib
import platform
import re
import string
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .errors import BridgeError
from .function import CallPlan, Function, describe_function, load_function, plan_call
from .loading import forget_files
from .rows import load_rows
from .split import DEFAULT_HELDOUT_SHARE, HELDOUT, TRAIN, Taskset, divide, mixed_types, smallest_gain
from .values import canonical, clean_text

CONTRACT_VERSION = "synth_optimizers.gepa.v2"


class BridgeTask(NamedTuple):
    """Everything that is served, checked."""

    name: str
    description: str | None
    function: Function
    plan: CallPlan
    texts: dict[str, str]
    taskset: Taskset
    warnings: list[str]
    placeholders: dict[str, list[str]] | None = None
    """What a proposal must keep of each text, if that is not `{column}`."""

    @property
    def train_rows(self) -> int:
        """Return the number of train rows."""
        return len(self.taskset.ids(TRAIN))

    @property
    def heldout_rows(self) -> int:
        """Return the number of held-out rows."""
        return len(self.taskset.ids(HELDOUT))

    def describe(self) -> dict[str, Any]:
        """Return what the task consists of, for people and for the command line."""
        gain = smallest_gain(self.heldout_rows)
        return {
            "name": self.name,
            "description": self.description,
            "function": {
                "name": self.function.name,
                "location": self.function.location,
                "target": self.function.target,
                "parameters": self.plan.parameters,
                "is_async": self.function.is_async,
            },
            "texts": self.texts,
            "template_variables": {name: self.template_variables(name) for name in self.texts},
            "columns": self.taskset.columns,
            "labels": self.taskset.labels,
            "split_column": self.taskset.split_column,
            "rows": len(self.taskset.tasks),
            "splits": {TRAIN: self.train_rows, HELDOUT: self.heldout_rows},
            "task_ids": self.taskset_document()["splits"],
            "duplicates": self.taskset.duplicates,
            "smallest_gain": round(gain, 4) if gain is not None else None,
            "smallest_gain_sentence": gain_sentence(self.heldout_rows),
            "warnings": self.warnings,
            "python": {"version": platform.python_version(), "executable": sys.executable},
            "digest": self.digest(),
        }

    def digest(self) -> str:
        """Return a digest of the function's source and of all rows."""
        rows = {task_id: task.row for task_id, task in self.taskset.tasks.items()}
        return hashlib.sha256((self.function.digest + canonical(rows)).encode()).hexdigest()

    def template_variables(self, text: str) -> list[str]:
        """Return the columns whose placeholders a text contains, or the placeholders that a preset found."""
        if self.placeholders is not None:
            return self.placeholders.get(text, [])
        return [name for name in placeholders(self.texts[text]) if name in self.taskset.columns]

    def metadata(self, *, remembers_rollouts: bool) -> dict[str, Any]:
        """Return the reply of `/metadata`."""
        contract = {
            "version": CONTRACT_VERSION,
            "program_route": "/program",
            "taskset_route": "/taskset",
            "taskset_tasks_route": "/taskset/tasks",
            "rollout_route": "/rollouts",
            "remembers_rollouts": remembers_rollouts,
        }
        return {
            "runtime": {"runtime_id": self.name, "name": self.name, "description": self.description},
            "capabilities": {"rollout_modes": ["blocking", "async"]},
            "metadata": {"optimizer_contracts": {"gepa": contract}, "bridge": {"python": platform.python_version()}},
        }

    def program(self) -> dict[str, Any]:
        """Return the reply of `/program`.

        The digest of the function is in a fixed module, because the optimizer's ids and cache keys cover the contents
        of modules: answers of another version of the function are not reused.
        """
        modules: list[dict[str, Any]] = [
            {
                "module_id": name,
                "role": "system",
                "content": text,
                "mutable": True,
                "candidate_field": name,
                "template_variables": self.template_variables(name),
            }
            for name, text in self.texts.items()
        ]
        fixed = "evaluation"
        while fixed in self.texts:
            fixed += "_"
        call = f"{self.function.name}({', '.join(self.plan.parameters)})"
        words = [f"Each row is scored by the Python function {call}.", self.function.documentation or ""]
        content = " ".join(word for word in words if word)
        modules.append(
            {"module_id": fixed, "role": "tool", "content": f"{content}\n(version {self.function.digest[:16]})"}
        )
        return {
            "version": "prompt_program.v1",
            # A resumed run is refused if this has changed, so that scores of two functions are never compared.
            "program_id": f"{self.name}@{self.function.digest[:8]}",
            "modules": modules,
            "target_modules": [{"module_id": name, "candidate_field": name} for name in self.texts],
            "seed_candidate": self.texts,
            "metadata": {"task_id": self.name, "function_digest": self.function.digest},
        }

    def task_info(self) -> dict[str, Any]:
        """Return the reply of `/task_info`."""
        shown = [name for name in self.taskset.columns if name not in self.taskset.labels]
        described = self.description or self.function.documentation or f"Rows scored by {self.function.name}"
        return {"task": {"task_id": self.name, "description": described, "columns": shown}}

    def taskset_document(self) -> dict[str, Any]:
        """Return the reply of `/taskset`."""
        return {"taskset_id": self.name, "splits": {split: self.taskset.ids(split) for split in (TRAIN, HELDOUT)}}


def load_task(
    function: str | Callable[..., Any] | Function,
    rows: str | Iterable[Mapping[str, Any]],
    texts: Mapping[str, str],
    *,
    labels: Sequence[str] | None = None,
    heldout: float = DEFAULT_HELDOUT_SHARE,
    split_column: str | None = None,
    seed: int = 0,
    name: str | None = None,
    description: str | None = None,
    factory: dict[str, Any] | None = None,
    warnings: Sequence[str] = (),
    placeholders: dict[str, list[str]] | None = None,
) -> BridgeTask:
    """Load a function and rows, divide the rows, and check that everything fits together.

    `function` is a callable, `file.py:name`, `module:name` or what a preset made. With `factory`, the named object is
    called with these arguments and returns the function. `warnings` come before those that are found here, and
    `placeholders` are what a proposal must keep of each text if that is not `{column}`.
    """
    checked = check_texts(texts)
    if isinstance(function, Function):
        source = function
    else:
        forget_files()
        source = load_function(function, factory) if isinstance(function, str) else describe_function(function)
    found = load_rows(rows)
    plan, of_call = plan_call(source, checked, found)
    taskset = divide(found, labels, heldout, split_column, seed)
    warnings = [*warnings, *of_call, *mixed_types(found), *_warnings(taskset)]
    task_name = name or source.name.strip("<>")
    if not re.fullmatch(r"[\w.:/-]{1,100}", task_name):
        raise BridgeError("option_invalid", f"--id is {task_name!r}", "Use letters, digits and ._:/- only.")
    return BridgeTask(task_name, description, source, plan, checked, taskset, warnings, placeholders)


def check_texts(texts: Mapping[str, str]) -> dict[str, str]:
    """Check that there are texts, that their names can be parameters, and that none is empty."""
    if not texts:
        raise BridgeError("text_missing", "there is no text to improve", "Give one with --text NAME=@FILE.")
    for name, text in texts.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise BridgeError(
                "text_name", f"the text name {name!r} is not a name of a parameter", "Use letters, digits and _."
            )
        if name == "row":
            raise BridgeError("text_name", "a text cannot be named 'row', which is the input", "Choose another name.")
        if not isinstance(text, str) or not text.strip():
            raise BridgeError("text_empty", f"the text {name!r} is {text!r}", "Give the text as it is today.")
    return {name: clean_text(text) for name, text in texts.items()}


def gain_sentence(heldout_rows: int) -> str:
    """Return the sentence that says what the held-out rows can show."""
    gain = smallest_gain(heldout_rows)
    rows = "1 held-out row" if heldout_rows == 1 else f"{heldout_rows} held-out rows"
    shown = "no gain" if gain is None else f"a gain above {gain:.2f}"
    return f"with {rows} {shown} can be told from luck"


def placeholders(text: str) -> list[str]:
    """Return the names in `{name}` placeholders of a text, once each."""
    try:
        found = [name for _, name, _, _ in string.Formatter().parse(text) if name]
    except ValueError:
        # Braces that are no placeholders, such as JSON in a prompt.
        found = re.findall(r"\{(\w+)\}", text)
    return list(dict.fromkeys(name for name in found if name.isidentifier() and f"{{{name}}}" in text))


def _warnings(taskset: Taskset) -> list[str]:
    warnings = []
    if not taskset.labels:
        warnings.append("no column is a label: the proposer sees all columns of train rows; name labels with --label")
    if taskset.on_both_sides:
        warnings.append(
            f"{taskset.on_both_sides} inputs are both train and held-out rows: the held-out gain will be too high"
        )
    if taskset.duplicates:
        warnings.append(f"{taskset.duplicates} rows repeat the input of another row")
    if len(taskset.ids(HELDOUT)) < 10:
        warnings.append(f"{gain_sentence(len(taskset.ids(HELDOUT)))}: add rows")
    keys = [name for name in taskset.columns if name.lower().replace("-", "_") in CREDENTIAL_NAMES]
    if keys:
        warnings.append(f"column {keys[0]!r} is named like a credential, which a run refuses: rename it")
    return warnings


CREDENTIAL_NAMES = ("access_token", "api_key", "apikey", "authorization", "bearer_token", "secret_key")
