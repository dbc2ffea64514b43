"""Promptfoo configs without promptfoo: templates, assertions, prompts, tests, providers, and clear errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.bridge import run_command
from support.http_server import serve_calls

from synth_optimizers.bridge import BridgeError
from synth_optimizers.bridge.presets import PresetOptions, load_preset
from synth_optimizers.bridge.presets.promptfoo_assertions import combine, distance, evaluate
from synth_optimizers.bridge.presets.promptfoo_files import parse_expected
from synth_optimizers.bridge.presets.templates import check_template, render

ALWAYS = [{"type": "contains", "value": "{{word}}"}]
TESTS = [{"vars": {"word": f"word {number}"}, "assert": ALWAYS} for number in range(12)]


def config(folder: Path, **changes: Any) -> str:
    """Write a config whose prompt repeats a word, and return its name."""
    document = {"prompts": ["Say {{word}}"], "providers": ["echo"], "tests": TESTS, **changes}
    path = folder / "promptfooconfig.json"
    path.write_text(json.dumps(document))
    return str(path)


def load(folder: Path, options: PresetOptions | None = None, **changes: Any) -> Any:
    target = config(folder, **changes)
    return load_preset("promptfoo", (options or PresetOptions(""))._replace(target=target))


def score(task: Any, row: int = 0, **texts: str) -> dict[str, Any]:
    found: dict[str, Any] = task.function.call(row=dict(task.rows[row]), **{**task.texts, **texts})
    return found


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{a}} and {{ b.c }} and {{-d[1]-}}", "1 and x and true"),
        ("{{b}}", '{"c":"x"}'),
        ("{{none}}{{missing}}.", "."),
        ("{a} {% raw %}", "{a} {% raw %}"),
    ],
)
def test_variables_are_filled_in(template: str, text: str) -> None:
    assert render(template, {"a": 1, "b": {"c": "x"}, "d": [False, True], "none": None}) == text


@pytest.mark.parametrize("part", ["{{ a | upper }}", "{% if a %}", "{{ f(a) }}", "{# note #}", "{{a"])
def test_other_parts_of_nunjucks_are_named_with_their_line(part: str) -> None:
    with pytest.raises(BridgeError, match=r"prompt\.txt, line 2: '\{") as error:
        check_template(f"first {{{{a}}}}\nthen {part}", "prompt.txt")
    assert error.value.code == "template_unsupported"


@pytest.mark.parametrize(
    ("kind", "value", "passing", "failing"),
    [
        ("equals", "yes", "yes", "Yes"),
        ("equals", {"a": 1}, '{ "a": 1 }', '{"a": 2}'),
        ("not-equals", "yes", "no", "yes"),
        ("contains", "{{word}}", "a pear tree", "a plum tree"),
        ("icontains", "PEAR", "a pear tree", "a plum tree"),
        ("not-contains", "pear", "a plum tree", "a pear tree"),
        ("contains-any", ["pear", "fig"], "a fig", "a plum"),
        ("contains-any", "pear, fig", "a fig", "a plum"),
        ("contains-all", ["pear", "fig"], "pear and fig", "a pear"),
        ("icontains-any", ["PEAR", "FIG"], "a fig", "a plum"),
        ("icontains-all", ["PEAR", "FIG"], "pear and fig", "a pear"),
        ("starts-with", "Dear", "Dear Ann", "Hello, Dear"),
        ("regex", r"^(?<digits>\d+)$", "12", "12 "),
        ("not-regex", r"\d", "none", "1"),
        ("is-json", None, "[1]", "[1"),
        ("not-is-json", None, "[1", "[1]"),
        ("contains-json", None, 'Here: {"a": [1]}!', "Here: {a}"),
        ("levenshtein", "kitten", "sitting", "a quite different text"),
        ("python", "len(output) > 3", "long", "no"),
        ("python", "'{{word}}' in output", "a pear", "a plum"),
        ("python", "words = output.split()\nreturn len(words) == 2", "one two", "one"),
        ("python", "context['vars']['word'] in output", "pear", "plum"),
        ("python", "{'pass': output == 'a', 'score': 0.5, 'reason': 'why'}", "a", "b"),
    ],
)
def test_assertions_pass_and_fail(kind: str, value: Any, passing: str, failing: str, tmp_path: Path) -> None:
    context = {"vars": {"word": "pear"}}
    passed = evaluate(passing, {"type": kind, "value": value}, context, tmp_path)
    failed = evaluate(failing, {"type": kind, "value": value}, context, tmp_path)
    assert (passed.passed, failed.passed) == (True, False)
    assert failed.reason


def test_weights_sets_thresholds_and_metrics_combine(tmp_path: Path) -> None:
    wrong = {"type": "equals", "value": "b", "weight": 3, "metric": "exact"}
    right = {"type": "contains", "value": "a", "metric": "words"}
    verdict, metrics = combine("a", [wrong, right], None, {"vars": {}}, tmp_path)
    assert (verdict.passed, verdict.score, metrics) == (False, 0.25, {"exact": 0.0, "words": 1.0})
    assert combine("a", [wrong, right], 0.25, {"vars": {}}, tmp_path)[0].passed
    either = {"type": "assert-set", "assert": [wrong, right], "threshold": 0.2}
    assert evaluate("a", either, {"vars": {}}, tmp_path).passed
    ignored = {**wrong, "weight": 0}
    assert combine("a", [ignored, right], None, {"vars": {}}, tmp_path)[0][:2] == (True, 1.0)
    assert distance("", "abc") == 3


@pytest.mark.parametrize(
    ("cell", "assertion"),
    [
        ("Paris", {"type": "equals", "value": "Paris"}),
        ("note: this", {"type": "equals", "value": "note: this"}),
        ("contains: a", {"type": "contains", "value": "a"}),
        ("not-contains:a", {"type": "not-contains", "value": "a"}),
        ("contains-any:a, b", {"type": "contains-any", "value": ["a", "b"]}),
        ("levenshtein(2):a", {"type": "levenshtein", "value": "a", "threshold": 2.0}),
        ("is-json", {"type": "is-json"}),
        ("fn:output", {"type": "javascript", "value": "output"}),
        ("grade:is polite", {"type": "llm-rubric", "value": "is polite"}),
    ],
)
def test_cells_are_assertions(cell: str, assertion: dict[str, Any]) -> None:
    assert parse_expected(cell) == assertion


def test_another_assertion_file_is_another_function(tmp_path: Path) -> None:
    tests = [{"vars": {"word": "a"}, "assert": [{"type": "python", "value": "file://own_checks.py"}]}]
    digests = set()
    for number in (1, 2):
        (tmp_path / "own_checks.py").write_text(f"def get_assert(output, context):\n    return {number} > 0\n")
        digests.add(load(tmp_path, tests=tests).function.digest)
    assert len(digests) == 2


def test_a_config_is_a_function_rows_and_texts(tmp_path: Path) -> None:
    task = load(tmp_path)
    assert task.texts == {"prompt": "Say {{word}}"}
    assert (task.placeholders, task.labels, len(task.rows)) == ({"prompt": ["{{word}}"]}, ["test"], 12)
    assert score(task)["score"] == 1.0
    assert score(task)["output"] == "Say word 0"
    found = score(task, prompt="Say {{other}}")
    assert (found["score"], found["output"]) == (0.0, "Say ")
    assert found["feedback"].splitlines()[1] == "The prompt uses {{other}}, which no test fills in."


def test_tests_come_from_files_defaults_and_lists(tmp_path: Path) -> None:
    (tmp_path / "tests.csv").write_text('word,answer,__expected,__metadata:split\n"a, b",x,contains:{{word}},train\n')
    (tmp_path / "more.jsonl").write_text('{"vars": {"word": ["c", "d"]}}\n')
    default = {"assert": [{"type": "contains", "value": "Say"}], "vars": {"answer": "y"}, "threshold": 0.5}
    task = load(tmp_path, tests=["file://tests.csv", "file://more.jsonl"], defaultTest=default)
    assert [(row["word"], row["answer"], row.get("split")) for row in task.rows] == [
        ("a, b", "x", "train"),
        ("c", "y", None),
        ("d", "y", None),
    ]
    assert [len(row["test"]["assert"]) for row in task.rows] == [2, 1, 1]
    assert task.labels == ["answer", "test"]


def test_the_messages_of_a_chat_are_texts(tmp_path: Path) -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "{{word}}"},
        {"role": "user", "content": "Now say {{word}}"},
    ]
    (tmp_path / "chat.json").write_text(json.dumps(chat))
    task = load(tmp_path, prompts=["file://chat.json", "Say {{word}}"])
    assert task.texts == {"system": "Be brief.", "user": "Now say {{word}}"}
    assert task.warnings == ["promptfooconfig.json has 2 prompts: the first is improved; see --prompt"]
    asked = json.loads(score(task, system="Be long.")["output"])
    assert [message["content"] for message in asked] == ["Be long.", "word 0", "Now say word 0"]
    one = load(tmp_path, PresetOptions("", texts=(("system", "Other."),)), prompts=["file://chat.json"])
    assert one.texts == {"system": "Other."}
    assert load(tmp_path, PresetOptions("", prompt=2), prompts=["file://chat.json", "Say {{word}}"]).warnings == []


def test_providers_are_files_and_endpoints(tmp_path: Path) -> None:
    (tmp_path / "own_provider.py").write_text(
        "async def call_api(prompt, options, context):\n"
        "    if 'fail' in prompt:\n        return {'error': 'no luck'}\n"
        "    usage = {'prompt': 2, 'completion': 1, 'total': 3}\n"
        "    return {'output': prompt + options['config']['end'], 'tokenUsage': usage, 'cost': 0.5}\n"
    )
    task = load(tmp_path, providers=[{"id": "python:own_provider.py", "config": {"end": "!"}}])
    found = score(task)
    assert (found["output"], found["usage"]["cost_usd"], found["usage"]["prompt_tokens"]) == ("Say word 0!", 0.5, 2)
    with pytest.raises(RuntimeError, match="no luck"):
        score(task, prompt="fail")

    bodies = []

    def answer(_: str, path: str, body: Any) -> tuple[int, Any]:
        assert path == "/v1/chat/completions"
        bodies.append(body)
        if len(bodies) == 2:
            return 400, {"error": {"message": "too warm"}}
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        return 200, {"choices": [{"message": {"content": "word 0"}}], "usage": usage}

    with serve_calls(answer) as url:
        options = {"apiBaseUrl": f"{url}/v1", "temperature": 0.2, "passthrough": {"top_k": 3}, "cost": 0.01}
        task = load(tmp_path, providers={"id": "openai:chat:m", "config": options})
        found = score(task)
        with pytest.raises(RuntimeError, match=r"HTTP 400: .*too warm"):
            score(task)
    assert (found["score"], found["usage"]["total_tokens"]) == (1.0, 7)
    assert found["usage"]["cost_usd"] == pytest.approx(0.07)
    message = {"role": "user", "content": "Say word 0"}
    assert bodies[0] == {"model": "m", "messages": [message], "temperature": 0.2, "top_k": 3}


UNSUPPORTED = [
    {"vars": {"word": "a"}, "assert": [{"type": "javascript", "value": "true"}, *ALWAYS]},
    {"vars": {"word": "b"}, "description": "polite", "assert": [{"type": "llm-rubric", "value": "polite"}]},
    {"vars": {"word": "c"}, "assert": [{"type": "assert-set", "assert": [{"type": "latency", "threshold": 5}]}]},
    *TESTS[:2],
]


def test_all_unsupported_assertions_are_named_at_once_or_skipped(tmp_path: Path) -> None:
    with pytest.raises(BridgeError) as error:
        load(tmp_path, tests=UNSUPPORTED)
    assert error.value.code == "assert_unsupported"
    assert "test 1 (promptfooconfig.json: tests[0]): javascript needs Node; " in error.value.message
    assert "tests[1]), 'polite': llm-rubric needs a model or a service; " in error.value.message
    assert "tests[2]): latency depends on the call" in error.value.message
    task = load(tmp_path, PresetOptions("", skip_unsupported=True), tests=UNSUPPORTED)
    assert [row["word"] for row in task.rows] == ["a", "word 0", "word 1"]
    assert [warning.split(":")[0] for warning in task.warnings] == [
        "3 assertions are skipped",
        "2 tests without assertions are skipped",
    ]


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"tests": []}, "tests_missing", "has no tests"),
        ({"tests": "file://none.csv"}, "config_not_found", "none.csv"),
        ({"tests": "tests.xlsx"}, "tests_unsupported", "tests.xlsx"),
        ({"tests": [{"vars": {"word": "a"}}]}, "assert_missing", "tests[0]"),
        ({"tests": [{"vars": [1], "assert": ALWAYS}]}, "tests_invalid", "vars is [1]"),
        ({"tests": [{"vars": {}, "assert": [{"value": 1}]}]}, "assert_invalid", "has no type"),
        ({"tests": [{"vars": {}, "assert": [{"type": "equals"}]}]}, "assert_invalid", "equals has no value"),
        ({"tests": [{"assert": [{"type": "regex", "value": "("}]}]}, "assert_invalid", "is not a regex"),
        ({"tests": [{"assert": [{"type": "python", "value": "1 +"}]}]}, "assert_invalid", "is not Python"),
        ({"tests": [{"assert": [{"type": "python", "value": "file://no.py"}]}]}, "assert_not_found", "no.py"),
        ({"defaultTest": {"options": {"transform": "x"}}}, "tests_unsupported", "options.transform"),
        ({"prompts": ["Say {{wrd}}"]}, "variable_unknown", "Did you mean 'word'?"),
        ({"prompts": ["Say it"]}, "variable_missing", "the same for every test"),
        ({"prompts": ["file://prompt.js"]}, "prompts_unsupported", "prompt.js"),
        ({"prompts": ["file://none.txt"]}, "config_not_found", "none.txt"),
        ({"prompts": [[{"role": "user", "content": "{{word}}"}]]}, "prompts_invalid", "no system or user"),
        ({"providers": ["anthropic:messages:m"]}, "provider_unsupported", "anthropic:messages:m"),
        ({"providers": ["file://none.py"]}, "provider_not_found", "none.py"),
        ({"providers": [{"id": "openai:m", "config": {"apiKeyEnvar": "NO_SUCH_KEY"}}]}, "key_missing", "$NO_SUCH_KEY"),
        ({"scenarios": [1]}, "config_unsupported", "scenarios"),
    ],
)
def test_errors_name_the_place(changes: dict[str, Any], code: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BridgeError) as error:
        load(tmp_path, **changes)
    assert error.value.code == code
    assert said in str(error.value)


def test_the_command_describes_and_refuses(tmp_path: Path) -> None:
    config(tmp_path)
    command = ("describe", "promptfooconfig.json", "--from", "promptfoo")
    found = json.loads(run_command(tmp_path, *command).stdout)
    assert (found["rows"], found["template_variables"]) == (12, {"prompt": ["{{word}}"]})
    for options, code in (
        (("--rows", "rows.csv"), "option_invalid"),
        (("--metric", "m"), "option_invalid"),
        (("--prompt", "2"), "option_invalid"),
        (("--text", "promt"), "text_unknown"),
    ):
        done = run_command(tmp_path, *command, *options)
        assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (2, code)
    done = run_command(tmp_path, "describe", "promptfooconfig.json", "--prompt", "1")
    assert "error[option_invalid]: --prompt is given without --from" in done.stderr
