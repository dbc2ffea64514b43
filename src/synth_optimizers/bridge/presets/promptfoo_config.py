"""Serves a promptfoo config: its texts are those of one prompt, its rows the tests, and its assertions score them.

Everything is evaluated here, without Node: see `promptfoo_files`, `promptfoo_assertions`, `promptfoo_providers` and
`templates`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import BridgeError, suggestion
from .common import PresetFunction, PresetOptions, PresetTask, chosen_texts, described, identifier, refuse
from .promptfoo_assertions import ASSERT_SET, check_assertion, combine, why_unsupported
from .promptfoo_files import Config, Prompt, choose_prompt, providers, read_config, read_tests
from .promptfoo_providers import Provider, load_provider
from .templates import VARIABLE, check_template, render_all, variables

SHOWN_PROBLEMS = 20


class ConfigFunction(PresetFunction):
    """Sends the prompt of a test to the provider, and scores the answer by the test's assertions."""

    def __init__(self, prompt: Prompt, provider: Provider, column: str, texts: list[str], folder: Path) -> None:
        super().__init__(texts)
        self._prompt = prompt
        self._provider = provider
        self._column = column
        self._folder = folder

    def __call__(self, /, row: dict[str, Any], **texts: str) -> dict[str, Any]:
        """Run one test."""
        test = row[self._column]
        values = {name: value for name, value in row.items() if name != self._column}
        values = render_all(values, values, keep_unknown=True)
        asked = self._prompt.fill(texts, values, test)
        reply = self._provider(asked, values)
        context = {"vars": values, "prompt": asked}
        verdict, metrics = combine(reply.output, test["assert"], test.get("threshold"), context, self._folder)
        unknown = [name for text in texts.values() for name in variables(text) if name not in values]
        notes = [f"The prompt uses {{{{{name}}}}}, which no test fills in." for name in dict.fromkeys(unknown)]
        messages = asked if isinstance(asked, list) else [{"role": "user", "content": asked}]
        return {
            "score": verdict.score,
            "feedback": "\n".join([verdict.reason or "All assertions passed.", *notes]),
            "objectives": metrics or None,
            "output": reply.output,
            "usage": reply.usage,
            "trace": [*messages, {"role": "assistant", "content": reply.output}],
        }


def load(options: PresetOptions) -> PresetTask:
    """Read a config and check everything that can be checked before a call."""
    refuse("--rows", options.rows, "promptfoo", "The rows are the tests of the config.")
    refuse("--metric", options.metric, "promptfoo", "The assertions of the config are the metric.")
    config = read_config(options.target)
    for key in ("scenarios",):
        if config.document.get(key):
            raise BridgeError("config_unsupported", f"{config.path}: {key} is not supported", "Write them as tests.")
    prompt, warnings = choose_prompt(config, options.prompt)
    tests = read_tests(config)
    warnings += _check_tests(config, tests, skips=options.skip_unsupported)
    texts = chosen_texts(prompt.texts, options.texts, prompt.name)
    used = _check_variables(prompt, texts, tests)
    warnings += used[1]
    column = identifier("test", {name for test in tests for name in test["vars"]})
    rows = [_row(test, column) for test in tests]
    factory = {"config": str(config.path), "prompt": options.prompt, "column": column, "texts": list(texts)}
    call, file = _function(config, prompt, column, list(texts))
    if len(providers(config)) > 1:
        warnings.append(f"{config.path.name} has {len(providers(config))} providers: the first is used")
    hidden = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in used[0]]
    labels = [name for name in hidden if name.lower() not in ("id", "task_id", "split")]
    files = (str(config.path), prompt.file, file, *_assertion_files(tests, config.folder))
    function = described(call, __name__, factory, "assertions", config.path.name, files)
    about = config.document.get("description")
    name = identifier(config.path.parent.name, ())
    placeholders = {text: [found[0] for found in VARIABLE.finditer(texts[text])] for text in texts}
    return PresetTask(function, rows, texts, labels, name, str(about) if about else None, warnings, placeholders)


def make(config: str, prompt: int | None, column: str, texts: list[str]) -> ConfigFunction:
    """Make the function in a worker process."""
    read = read_config(config)
    return _function(read, choose_prompt(read, prompt)[0], column, texts)[0]


def _function(config: Config, prompt: Prompt, column: str, texts: list[str]) -> tuple[ConfigFunction, str | None]:
    provider, file = load_provider(providers(config)[0], config.folder, f"{config.path.name}: providers[0]")
    return ConfigFunction(prompt, provider, column, texts, config.folder), file


def _check_tests(config: Config, tests: list[dict[str, Any]], *, skips: bool) -> list[str]:
    """Check all assertions and report every unsupported one at once. Returns warnings about what was skipped."""
    problems: list[str] = []
    for test in tests:
        for assertion in test["assert"]:
            check_assertion(assertion, test["place"], config.folder)
        problems += [f"{test['place']}: {kind} {reason}" for kind, reason in _unsupported(test["assert"])]
        test["assert"] = _supported(test["assert"])
    warnings: list[str] = []
    if problems:
        listed = "; ".join(problems[:SHOWN_PROBLEMS])
        rest = f"; and {len(problems) - SHOWN_PROBLEMS} more" if len(problems) > SHOWN_PROBLEMS else ""
        if not skips:
            raise BridgeError(
                "assert_unsupported",
                f"{len(problems)} assertions cannot be evaluated here: {listed}{rest}",
                "Replace them by string, regex, JSON or python assertions, or add --skip-unsupported.",
                "\n".join(problems),
            )
        warnings.append(f"{len(problems)} assertions are skipped: {listed}{rest}")
    empty = [test["place"] for test in tests if not test["assert"]]
    if empty and not skips:
        raise BridgeError(
            "assert_missing",
            f"{len(empty)} tests have no assertions: {'; '.join(empty[:SHOWN_PROBLEMS])}",
            "Add `assert` to each of them or to defaultTest, or add --skip-unsupported.",
        )
    if empty:
        tests[:] = [test for test in tests if test["assert"]]
        warnings.append(f"{len(empty)} tests without assertions are skipped: {'; '.join(empty[:SHOWN_PROBLEMS])}")
    if not tests:
        raise BridgeError(
            "tests_empty", f"no test of {config.path.name} has an assertion", "Add `assert` to the tests."
        )
    return warnings


def _unsupported(assertions: list[Any]) -> Iterator[tuple[str, str]]:
    for assertion in assertions:
        if assertion["type"] == ASSERT_SET:
            yield from _unsupported(assertion["assert"])
        elif reason := why_unsupported(assertion):
            yield assertion["type"], reason


def _assertion_files(tests: list[dict[str, Any]], folder: Path) -> list[str]:
    """Return the files of all Python assertions."""
    waiting = [assertion for test in tests for assertion in test["assert"]]
    found: dict[str, None] = {}
    while waiting:
        assertion = waiting.pop()
        waiting += assertion.get("assert") or []
        name = re.match(r"file://(.+\.py)(?::\w+)?$", str(assertion.get("value")))
        if name and assertion["type"] in ("python", "not-python"):
            found[str(folder / name[1])] = None
    return sorted(found)


def _supported(assertions: list[Any]) -> list[Any]:
    kept = []
    for assertion in assertions:
        if assertion["type"] == ASSERT_SET:
            inner = _supported(assertion["assert"])
            kept += [{**assertion, "assert": inner}] if inner else []
        elif why_unsupported(assertion) is None:
            kept.append(assertion)
    return kept


def _check_variables(
    prompt: Prompt, texts: Mapping[str, str], tests: list[dict[str, Any]]
) -> tuple[list[str], list[str]]:
    """Return the variables that the prompt uses, and warnings about tests that lack one."""
    whole = [*texts.values(), *(text for name, text in prompt.texts.items() if name not in texts)]
    for message in prompt.messages or []:
        whole += [message["content"]] if isinstance(message.get("content"), str) else []
    used = list(dict.fromkeys(name for text in whole for name in check_template(text, prompt.name)))
    # A variable may consist of others.
    inner = [
        name
        for test in tests
        for outer in used
        if isinstance(test["vars"].get(outer), str)
        for name in variables(test["vars"][outer])
    ]
    known = list(dict.fromkeys(name for test in tests for name in test["vars"]))
    warnings = []
    for name in used:
        missing = [test["place"] for test in tests if name not in test["vars"]]
        if len(missing) == len(tests):
            raise BridgeError(
                "variable_unknown",
                f"{prompt.name} uses {{{{{name}}}}}, which no test has",
                suggestion(name, [other for other in known if other not in used], "Variables"),
            )
        if missing:
            warnings.append(f"{prompt.name} uses {{{{{name}}}}}, which is empty in {len(missing)} tests: {missing[0]}")
    if not used:
        raise BridgeError(
            "variable_missing",
            f"{prompt.name} uses no variable, so it is the same for every test",
            f"Write {{{{name}}}} where a variable belongs: {', '.join(known) or 'the tests have none'}.",
        )
    return [name for name in dict.fromkeys([*used, *inner]) if name in known], warnings


def _row(test: Mapping[str, Any], column: str) -> dict[str, Any]:
    kept = {key: test[key] for key in ("assert", "threshold", "prefix", "suffix") if test.get(key) is not None}
    split = {"split": test["split"]} if "split" in test else {}
    return {**test["vars"], **split, column: kept}
