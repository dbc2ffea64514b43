"""Reads a promptfoo config and the files that it names: its prompts, its providers and its tests."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BridgeError
from ..values import safe_repr, to_json
from .common import framework, identifier
from .promptfoo_assertions import why_unsupported
from .templates import check_template, render, render_all

TEXT = "prompt"
ROLES = ("system", "developer", "user")


class Prompt(NamedTuple):
    """A prompt: one text, or messages of which some are texts."""

    name: str
    messages: list[dict[str, Any]] | None
    texts: dict[str, str]
    places: dict[str, int]
    """The message of each text."""
    file: str | None = None

    def fill(self, texts: Mapping[str, str], values: Mapping[str, Any], test: Mapping[str, Any]) -> Any:
        """Return the prompt of a test with the texts of a candidate."""
        if self.messages is None:
            text = render(texts.get(TEXT, self.texts[TEXT]), values)
            return f"{render(str(test.get('prefix', '')), values)}{text}{render(str(test.get('suffix', '')), values)}"
        messages = render_all(self.messages, values)
        for name, place in self.places.items():
            messages[place] = {**messages[place], "content": render(texts.get(name, self.texts[name]), values)}
        return messages


class Config(NamedTuple):
    """A config that was read."""

    path: Path
    document: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Return the folder that file names are relative to."""
        return self.path.parent


def read_config(target: str) -> Config:
    """Read a config of YAML or JSON."""
    path = Path(target).resolve()
    if path.suffix.lower() not in (".yaml", ".yml", ".json"):
        raise BridgeError("config_kind", f"{target} is not a YAML or JSON file", "Name a promptfooconfig.yaml.")
    document = _document(path)
    if not isinstance(document, dict):
        raise BridgeError("config_invalid", f"{target} is not an object", "Write prompts, providers and tests.")
    for key in ("prompts", "providers", "tests"):
        if not (document.get(key) or (key == "providers" and document.get("targets"))):
            raise BridgeError(f"{key}_missing", f"{target} has no {key}", f"Add {key} to the config.")
    return Config(path, document)


def _document(path: Path) -> Any:
    text = _text(path)
    if path.suffix.lower() == ".json":
        try:
            return json.loads(text)
        except ValueError as error:
            raise BridgeError("config_invalid", f"{path}: {error}", "Correct the JSON.") from error
    yaml = framework("promptfoo", "yaml", "pyyaml")
    try:
        return to_json(yaml.safe_load(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        said = getattr(error, "problem", None) or str(error)
        raise BridgeError("config_invalid", f"{place} is not YAML: {said}", "Correct this line.") from error


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise BridgeError(
            "config_not_found", f"{path} cannot be read: {error.strerror}", "Name a file that exists."
        ) from error
    except UnicodeDecodeError as error:
        raise BridgeError("config_invalid", f"{path} is not UTF-8 (byte {error.start})", "Save it as UTF-8.") from error


def providers(config: Config) -> list[Any]:
    """Return the providers of a config. promptfoo also calls them targets."""
    found = config.document.get("providers") or config.document.get("targets")
    return found if isinstance(found, list) else [found]


def choose_prompt(config: Config, number: int | None) -> tuple[Prompt, list[str]]:
    """Return the prompt to improve, and a warning if there are others."""
    given = config.document["prompts"]
    found = [
        prompt
        for index, entry in enumerate(given if isinstance(given, list) else [given])
        for prompt in _prompts(entry, config.folder, f"{config.path.name}: prompts[{index}]")
    ]
    if number is not None and not 1 <= number <= len(found):
        raise BridgeError("option_invalid", f"--prompt is {number}", f"Write a number from 1 to {len(found)}.")
    if not found:
        raise BridgeError("prompts_missing", f"{config.path.name} has no prompts", "Add prompts to the config.")
    prompt = found[(number or 1) - 1]
    for name, text in prompt.texts.items():
        if not text.strip():
            raise BridgeError("text_empty", f"{prompt.name}: the text {name!r} is empty", "Write a first prompt.")
        check_template(text, prompt.name)
    if len(found) > 1 and number is None:
        return prompt, [f"{config.path.name} has {len(found)} prompts: the first is improved; see --prompt"]
    return prompt, []


def _prompts(entry: Any, folder: Path, place: str) -> Iterator[Prompt]:
    if isinstance(entry, Mapping):
        entry = entry.get("raw") or entry.get("id")
    if isinstance(entry, list):
        yield _chat(entry, place, None)
        return
    if not isinstance(entry, str) or not entry.strip():
        raise BridgeError("prompts_invalid", f"{place} is {safe_repr(entry, 80)}", "Write a text or file://prompt.txt.")
    path = entry[len("file://") :] if entry.startswith("file://") else None
    if path is None and re.fullmatch(r"[\w./-]+\.(txt|md|json|ya?ml)", entry.strip()):
        path = entry.strip()
    if path is None:
        yield from _of_text(entry, place, None)
        return
    is_pattern = any(letter in path for letter in "*?[")
    for file in sorted(folder.glob(path)) if is_pattern else [folder / path]:
        kind = file.suffix.lower()
        if kind in (".yaml", ".yml"):
            yield _chat(_document(file), file.name, str(file))
        elif kind in (".py", ".js", ".cjs", ".mjs", ".ts"):
            raise BridgeError(
                "prompts_unsupported", f"{place}: {path} is a program, not a text", "Write the prompt as a text."
            )
        else:
            # A line with three hyphens divides the prompts of a file.
            parts = re.split(r"(?m)^---[ \t]*$", _text(file)) if kind == ".txt" else [_text(file)]
            for part in filter(str.strip, parts):
                yield from _of_text(part.strip(), file.name, str(file))


def _of_text(text: str, place: str, file: str | None) -> Iterator[Prompt]:
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if isinstance(found, list) and found and all(isinstance(item, dict) and "role" in item for item in found):
            yield _chat(found, place, file)
            return
    yield Prompt(place, None, {TEXT: text}, {}, file)


def _chat(messages: Any, place: str, file: str | None) -> Prompt:
    texts: dict[str, str] = {}
    places: dict[str, int] = {}
    for index, message in enumerate(messages if isinstance(messages, list) else []):
        if not isinstance(message, dict) or "role" not in message:
            break
        content = message.get("content")
        # A message that is nothing but a variable has no text of its own.
        if not isinstance(content, str) or not re.sub(r"\{\{[^{}]*\}\}", "", content).strip():
            continue
        if message["role"] in ROLES:
            name = identifier(message["role"], texts)
            texts[name], places[name] = content, index
    else:
        if texts:
            return Prompt(place, messages, texts, places, file)
    raise BridgeError(
        "prompts_invalid", f"{place} has no system or user message with a text", "Write a list of role and content."
    )


def read_tests(config: Config) -> list[dict[str, Any]]:
    """Return every test with its variables, assertions and threshold. Lists of values become a test for each."""
    default = config.document.get("defaultTest") or {}
    if isinstance(default, str):
        default = _document(config.folder / default.replace("file://", "", 1))
    if not isinstance(default, Mapping):
        raise BridgeError("tests_invalid", f"defaultTest is {safe_repr(default, 80)}", "Write an object.")
    found: list[dict[str, Any]] = []
    for test, place in _raw_tests(config.document["tests"], config.folder, config.path.name):
        if not isinstance(test, Mapping):
            raise BridgeError("tests_invalid", f"{place} is {safe_repr(test, 80)}", "Write an object with vars.")
        found += _expand(test, default, config.folder, f"test {len(found) + 1} ({place})")
    if not found:
        raise BridgeError("tests_empty", f"{config.path.name} has no tests", "Add tests with vars and assert.")
    return found


def _raw_tests(given: Any, folder: Path, place: str) -> Iterator[tuple[Any, str]]:
    if isinstance(given, str):
        path = folder / given.replace("file://", "", 1)
        kind = path.suffix.lower()
        if kind == ".csv":
            yield from _csv_tests(path)
        elif kind == ".jsonl":
            for number, line in enumerate(_text(path).split("\n"), 1):
                if line.strip():
                    try:
                        yield json.loads(line), f"{path.name}:{number}"
                    except ValueError as error:
                        raise BridgeError("tests_invalid", f"{path.name}:{number}: {error}", "Correct it.") from error
        elif kind in (".json", ".yaml", ".yml"):
            yield from _raw_tests(_document(path) or [], path.parent, path.name)
        else:
            raise BridgeError(
                "tests_unsupported", f"{place}: tests of {given!r} cannot be read", "Use .csv, .json, .jsonl or .yaml."
            )
        return
    if not isinstance(given, list):
        raise BridgeError("tests_invalid", f"{place}: tests is {safe_repr(given, 80)}", "Write a list of tests.")
    for index, test in enumerate(given):
        if isinstance(test, str):
            yield from _raw_tests(test, folder, place)
        else:
            yield test, f"{place}: tests[{index}]"


def _csv_tests(path: Path) -> Iterator[tuple[Any, str]]:
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        for row in reader:
            place = f"{path.name}:{reader.line_num}"
            if None in row or None in row.values():
                raise BridgeError("tests_invalid", f"{place} does not fit the header", "Put commas into quotes.")
            test: dict[str, Any] = {"vars": {}, "assert": [], "options": {}, "metadata": {}}
            for name, value in row.items():
                key = name.strip()
                if re.fullmatch(r"__expected\d*", key):
                    test["assert"] += [parse_expected(value)] if value.strip() else []
                elif key in ("__prefix", "__suffix"):
                    test["options"][key[2:]] = value
                elif key in ("__description", "__metric", "__threshold"):
                    test[key[2:]] = value
                elif key.startswith("__metadata:"):
                    test["metadata"][key.partition(":")[2]] = value
                elif key.startswith("__"):
                    raise BridgeError(
                        "tests_unsupported", f"{path.name}: the column {key} is not supported", "Remove it."
                    )
                else:
                    test["vars"][key] = value
            for assertion in test["assert"] if test.get("metric") else []:
                assertion["metric"] = test["metric"]
            if test.get("threshold"):
                test["threshold"] = _threshold(test["threshold"], place)
            yield test, place
    except csv.Error as error:
        raise BridgeError("tests_invalid", f"{path.name}:{reader.line_num}: {error}", "Check the quotes.") from error


def _threshold(text: str, place: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise BridgeError("tests_invalid", f"{place}: the threshold is {text!r}", "Write a number.") from error


def parse_expected(text: str) -> dict[str, Any]:
    """Return the assertion of a cell: `type:value`, `type(threshold):value`, or a text that the output equals."""
    short = {"fn": "javascript", "eval": "javascript", "grade": "llm-rubric"}
    found = re.match(r"\s*([a-z][a-z-]*)(?:\(([\d.]+)\))?\s*(?::\s*(.*))?\Z", text, re.DOTALL)
    if found:
        kind = short.get(found[1], found[1])
        plain = {"type": kind[4:] if kind.startswith("not-") else kind, "value": None}
        reason = why_unsupported(plain)
        is_known = reason is None or reason != "needs a model or a service" or kind in _MODEL_GRADED
        if is_known and (found[3] is not None or plain["type"] in ("is-json", "contains-json")):
            assertion: dict[str, Any] = {"type": kind}
            if found[3]:
                is_list = re.fullmatch(r"(not-)?i?contains-(any|all)", kind)
                assertion["value"] = [item.strip() for item in found[3].split(",")] if is_list else found[3]
            if found[2]:
                assertion["threshold"] = float(found[2])
            return assertion
    return {"type": "equals", "value": text}


_MODEL_GRADED = (
    "answer-relevance", "classifier", "context-faithfulness", "context-recall", "context-relevance", "factuality",
    "g-eval", "llm-rubric", "model-graded-closedqa", "model-graded-factuality", "moderation", "similar", "webhook",
)  # fmt: skip


def _expand(test: Mapping[str, Any], default: Mapping[str, Any], folder: Path, place: str) -> Iterator[dict[str, Any]]:
    options = {**(default.get("options") or {}), **(test.get("options") or {})}
    for key in ("transform", "transformVars", "postprocess"):
        if options.get(key):
            raise BridgeError(
                "tests_unsupported", f"{place}: options.{key} is not supported", "Check the answer as it is."
            )
    values = {**_vars(default.get("vars"), folder, place), **_vars(test.get("vars"), folder, place)}
    assertions = [*(default.get("assert") or []), *(test.get("assert") or [])]
    threshold = test.get("threshold", default.get("threshold"))
    if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, (int, float))):
        raise BridgeError("tests_invalid", f"{place}: threshold is {threshold!r}", "Write a number.")
    shared: dict[str, Any] = {"assert": assertions, "place": place, "threshold": threshold}
    shared.update({key: str(options[key]) for key in ("prefix", "suffix") if options.get(key)})
    if test.get("description"):
        shared["place"] = f"{place}, {str(test['description'])!r}"
    split = (test.get("metadata") or {}).get("split") if isinstance(test.get("metadata"), Mapping) else None
    if split is not None and "split" not in values:
        shared["split"] = split
    lists = {name: value for name, value in values.items() if isinstance(value, list)}
    if options.get("disableVarExpansion") or not lists:
        yield {**shared, "vars": values}
        return
    for combination in itertools.product(*lists.values()):
        yield {**shared, "vars": {**values, **dict(zip(lists, combination))}}


def _vars(given: Any, folder: Path, place: str) -> dict[str, Any]:
    if isinstance(given, str) and given.startswith("file://"):
        given = _document(folder / given[len("file://") :])
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise BridgeError("tests_invalid", f"{place}: vars is {safe_repr(given, 80)}", "Write names and values.")
    return {str(name): _value(value, folder, f"{place}: vars.{name}") for name, value in given.items()}


def _value(value: Any, folder: Path, place: str) -> Any:
    if not isinstance(value, str) or not value.startswith("file://"):
        return value
    path = folder / value[len("file://") :]
    if path.suffix.lower() in (".yaml", ".yml", ".json"):
        return _document(path)
    if path.suffix.lower() in (".txt", ".md", ".csv", ".html", ".xml"):
        return _text(path)
    raise BridgeError("tests_unsupported", f"{place}: {value} cannot be read", "Write the value as a text.")
