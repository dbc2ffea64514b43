"""Presets of frameworks: what is missing or wrong is named. The frameworks are the real ones."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from support.bridge import PYTHON, Bridge, preset_python, run_command, serve_command, served

from synth_optimizers.bridge import archive

DSPY = '''
import threading
import dspy
from dspy.lm15 import Message, Response, Usage

class Engine:
    def complete(self, request):
        usage = Usage(input_tokens=3, output_tokens=2, total_tokens=5)
        text = "upper" if "SHOUT" in str(request.system) else "lower"
        answer = f"[[ ## answer ## ]]\\n{text}\\n\\n[[ ## completed ## ]]"
        return Response(id=None, model="m", message=Message.assistant(answer), finish_reason="stop", usage=usage)

dspy.configure(lm=dspy.LM("m", engine=Engine(), cache=False))

class Program(dspy.Module):
    """Answers questions."""
    def __init__(self):
        self.first = dspy.Predict("question -> answer")
        self.inner = dspy.Module()
        self.inner.second = dspy.Predict("question, hint -> answer")
    def forward(self, question, hint="none"):
        self.first(question=question)
        return self.inner.second(question=question, hint=hint)

class Empty(dspy.Module):
    def forward(self, question):
        return question

class Unfinished(dspy.Module):
    def __init__(self):
        self.first = dspy.Predict("question -> answer")

alone = dspy.Predict("question -> answer")
def make(): return Program()
def breaks(): return 1 / 0
number = 3

def metric(example, prediction, trace=None): return prediction.answer == example.expected
def gepa(gold, pred, trace, pred_name, pred_trace):
    return dspy.Prediction(score=0.5, feedback=f"{gold.expected} not {pred.answer}")
def short(example): return 1
def long(a, b, c, d, e, f): return 1
def nothing(example, prediction, trace=None): pass
'''
INSPECT = '''
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, accuracy, mean, scorer
from inspect_ai.solver import chain_of_thought, generate, prompt_template, system_message

def answer(messages, *_):
    found = ModelOutput.from_content("m", " | ".join(message.text for message in messages))
    found.usage = ModelUsage(input_tokens=4, output_tokens=1, total_tokens=5, input_tokens_cache_read=2)
    return found

@scorer(metrics={"right": [mean()], "length": [mean()]})
def checks():
    async def score(state, target):
        value = {"right": "C" if target.text in state.output.completion else "I", "length": 7}
        return Score(value=value, explanation=f"saw {state.output.completion}")
    return score

samples = [Sample(input=f"question {n}", target="polite", metadata={"n": n}) for n in range(8)]
model = get_model("mockllm/model", custom_outputs=answer)

@task
def templates():
    """Asks politely."""
    solver = [system_message("Be brief."), prompt_template("Number {n}: {prompt}"), generate()]
    return Task(dataset=samples, solver=solver, scorer=checks(), model=model)

@task(name="kind_answers")
def parameters(system="Be kind.", level="easy"):
    return Task(dataset=samples, solver=[system_message(system), generate()], scorer=checks(), model=model)

@task
def bare():
    return Task(dataset=samples, solver=generate(), scorer=checks(), model=model)

@task
def unscored(system="Be kind."):
    return Task(dataset=samples, solver=[system_message(system), generate()], model=model)

@task
def without_model(system="Be kind."):
    return Task(dataset=samples, solver=[system_message(system), generate()], scorer=checks())

@task
def needs(name):
    return Task(dataset=samples)

@task
def raises():
    raise ValueError("no data")
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("presets")
    (folder / "program.py").write_text(DSPY)
    (folder / "tasks.py").write_text(INSPECT)
    (folder / "empty.py").write_text("x = 1\n")
    rows = "".join(f"question {number},lower\n" for number in range(12))
    (folder / "rows.csv").write_text("question,expected\n" + rows)
    (folder / "other.csv").write_text("qestion,expected\n" + rows)
    return folder


DESCRIBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from synth_optimizers_bridge.errors import BridgeError
from synth_optimizers_bridge.main import _task, parser

for options in json.loads(sys.argv[2]):
    try:
        found = _task(parser().parse_args(["describe", *options])).describe()
    except BridgeError as error:
        found = error.document()
    print("found " + json.dumps(found))
"""


def describe(folder: Path, *commands: Sequence[str]) -> list[Any]:
    """Return what `describe` says about several commands. One process imports the frameworks for all of them."""
    command = [preset_python(), "-c", DESCRIBE, str(archive()), json.dumps(commands)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)  # noqa: S603
    return [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("found ")]


def dspy(target: str = "program.py:Program", metric: str = "program.py:metric", rows: str = "rows.csv") -> list[str]:
    return ["--from", "dspy", target, "--metric", metric, "--rows", rows]


@pytest.mark.parametrize(
    ("options", "package"),
    [
        (dspy(), "dspy"),
        (["--from", "inspect", "tasks.py@templates"], "inspect-ai"),
        (["--from", "promptfoo", "promptfooconfig.yaml"], "pyyaml"),
    ],
)
def test_a_missing_framework_is_named_with_the_interpreter(place: Path, options: list[str], package: str) -> None:
    (place / "promptfooconfig.yaml").write_text("prompts: [a]\n")
    script = place / "isolated"
    script.write_text(f'#!/bin/sh\nexec {PYTHON} -I -S "$@"\n')
    script.chmod(0o755)
    error = json.loads(run_command(place, "describe", *options, python=str(script)).stdout)["error"]
    assert error["code"] == "library_missing"
    assert f"-m pip install {package}`" in error["hint"]


ERRORS = [
    (dspy("program.py:Progrm"), "program_not_found", "Did you mean 'Program'?"),
    (dspy("program.py:Empty"), "program_predictors", "has no predictors"),
    (dspy("program.py:Unfinished"), "program_kind", "no method forward"),
    (dspy("program.py:number"), "program_kind", "not a dspy.Module"),
    (dspy("program.py:breaks"), "program_kind", "ZeroDivisionError"),
    (dspy(metric="program.py:short"), "metric_signature", "too many positional"),
    (dspy(metric="program.py:long"), "metric_signature", "f"),
    (dspy(metric="program.py:number"), "metric_kind", "is 3, not a function"),
    (dspy(rows="other.csv"), "column_missing", "Did you mean 'qestion'?"),
    (dspy()[:3], "metric_missing", "--metric"),
    (dspy()[:5], "option_invalid", "--rows is missing"),
    ([*dspy(), "--text", "frst"], "text_unknown", "Did you mean 'first'?"),
    (["--from", "inspect", "tasks.py@template"], "task_not_found", "Did you mean 'templates'?"),
    (["--from", "inspect", "tasks.py"], "task_name", "several tasks"),
    (["--from", "inspect", "empty.py"], "task_not_found", "has no tasks"),
    (["--from", "inspect", "none.py"], "task_not_found", "does not exist"),
    (["--from", "inspect", "tasks.py@bare"], "text_missing", "no text to improve"),
    (["--from", "inspect", "tasks.py@unscored"], "scorer_missing", "has no scorer"),
    (["--from", "inspect", "tasks.py@without_model"], "model_missing", "$INSPECT_EVAL_MODEL"),
    (["--from", "inspect", "tasks.py@needs"], "task_signature", "'name'"),
    (["--from", "inspect", "tasks.py@raises"], "task_failed", "ValueError: no data"),
    (["--from", "inspect", "tasks.py@templates", "--rows", "rows.csv"], "option_invalid", "--rows"),
    (["--from", "other", "x"], "option_invalid", "--from"),
]


@pytest.fixture(scope="module")
def errors(place: Path) -> list[Any]:
    return describe(place, *(options for options, _, _ in ERRORS))


@pytest.mark.parametrize("case", range(len(ERRORS)), ids=[f"{code}-{said}" for _, code, said in ERRORS])
def test_errors_name_the_place(errors: list[Any], case: int) -> None:
    _, code, said = ERRORS[case]
    error = errors[case]["error"]
    assert error["code"] == code
    assert said in f"{error['message']} {error['hint']}"


def test_a_yaml_error_has_its_line(place: Path) -> None:
    (place / "bad.yaml").write_text("prompts:\n  - a\n tests: [\n")
    (found,) = describe(place, ["--from", "promptfoo", "bad.yaml"])
    error = found["error"]
    assert error["code"] == "config_invalid"
    assert "bad.yaml:3:" in error["message"]


def test_the_texts_of_a_program_are_the_instructions_of_its_predictors(place: Path) -> None:
    commands = [dspy(), dspy("program.py:make"), dspy("program.py:alone"), [*dspy(), "--text", "first=Answer."]]
    found = describe(place, *commands)
    assert [list(task["texts"]) for task in found[:3]] == [["first", "inner_second"]] * 2 + [["instructions"]]
    assert found[0]["labels"] == ["expected"]
    assert found[3]["texts"] == {"first": "Answer."}


def rollout(bridge: Bridge, rollout_id: str, **texts: str) -> Any:
    found = bridge.ask("GET", "/program").body["seed_candidate"]
    body = {**bridge.request(rollout_id), "candidate": {**found, **texts}}
    return bridge.ask("POST", "/rollouts", body).body


@pytest.fixture
def program(place: Path) -> Iterator[Bridge]:
    options = [*dspy()[3:], "--from", "dspy", "--text", "first", "--text", "inner_second"]
    with served(place, "program.py:Program", *options, python=preset_python()) as bridge:
        yield bridge


def test_a_rollout_sets_instructions_and_reports_calls(program: Bridge) -> None:
    found = rollout(program, "a")
    assert found["reward_info"]["outcome_reward"] == 1.0
    assert (found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]) == (6, 4)
    assert [len(call["messages"]) for call in found["trace"]] == [2, 2]
    changed = rollout(program, "b", inner_second="SHOUT")
    assert changed["reward_info"]["outcome_reward"] == 0.0
    assert changed["reward_info"]["details"]["output"] == {"answer": "upper"}
    # The program itself is as it was.
    assert rollout(program, "c")["reward_info"]["outcome_reward"] == 1.0


@pytest.mark.parametrize("mode", [(), ("--processes",)])
def test_metrics_of_reflective_optimizers_give_feedback(place: Path, mode: tuple[str, ...]) -> None:
    options = ("--from", "dspy", "--metric", "program.py:gepa", "--text", "first", *mode)
    with served(place, "program.py:Program", *options, python=preset_python()) as bridge:
        found = rollout(bridge, "a")
    assert found["reward_info"]["outcome_reward"] == 0.5
    assert found["actionable_side_info"] == {"feedback": "lower not lower"}


def test_a_metric_that_returns_nothing_fails_the_rollout(place: Path) -> None:
    options = ("--from", "dspy", "--metric", "program.py:nothing", "--text", "first")
    with served(place, "program.py:Program", *options, python=preset_python()) as bridge:
        found = rollout(bridge, "a")
    assert found["status"] == "failed"
    assert "nothing returned None" in found["status_detail"]


def test_the_texts_of_a_task_are_parameters_or_templates(place: Path) -> None:
    name = ["--from", "inspect", "tasks.py@kind_answers"]
    found, whole, chosen = describe(
        place, ["--from", "inspect", "tasks.py@templates"], name, [*name, "--text", "level"]
    )
    assert found["texts"] == {"system_message": "Be brief.", "prompt_template": "Number {n}: {prompt}"}
    assert found["template_variables"] == {"system_message": [], "prompt_template": ["{prompt}", "{n}"]}
    assert (found["labels"], found["description"]) == (["target", "metadata"], "Asks politely.")
    assert whole["texts"] == {"system": "Be kind."}
    assert chosen["texts"] == {"level": "easy"}


def test_an_eval_of_one_sample_is_a_rollout(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serve_task(place, "tasks.py@templates", "--metric", "right") as bridge:
        found = rollout(bridge, "a", system_message="Be polite." + " Be long." * 1000)
        plain = rollout(bridge, "b")
        refused = rollout(bridge, "c", system_message=str(place / "rows.csv"))
    assert list(tmp_path.glob("bridge-inspect-*")) == []
    assert found["reward_info"]["outcome_reward"] == 1.0
    assert plain["reward_info"]["outcome_reward"] == 0.0
    assert plain["actionable_side_info"]["feedback"].startswith("saw Be brief. | Number ")
    assert found["objective_scores"] == [{"objective": "right", "value": 1.0}, {"objective": "length", "value": 7.0}]
    assert (found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]) == (6, 1)
    assert [message["role"] for message in found["trace"]] == ["system", "user", "assistant"]
    # Inspect would send the contents of the file to the model.
    assert refused["status"] == "failed"
    assert "is the name of a file" in refused["status_detail"]


def serve_task(folder: Path, target: str, *options: str) -> AbstractContextManager[Bridge]:
    """Serve an Inspect task."""
    return serve_command(folder, target, "--from", "inspect", *options, python=preset_python())
