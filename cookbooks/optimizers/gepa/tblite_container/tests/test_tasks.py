"""Tasks are reproducible, reveal no hidden answer, and have checks that distinguish right from wrong."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
from tblite_container.policy import choose, recipes, script
from tblite_container.sandbox import Case, Sandbox
from tblite_container.tasks import EXAMPLE, HIDDEN, SHAPES, Task, accidents, load_tasks, reference
from tblite_container.texts import pipeline_of, task_question

TASKS = load_tasks()


def some_task(family: str) -> Task:
    return next(task for task in TASKS.values() if task.family == family)


def cases(task: Task, output: str | None = None) -> list[Case]:
    inputs = {name: list(task.inputs(name).values()) for name in HIDDEN}
    right = reference(task.family)
    return [Case(name, texts, right(texts) if output is None else output) for name, texts in inputs.items()]


def test_splits_share_families_but_not_words() -> None:
    train = [task for task in TASKS.values() if task.split == "train"]
    test = [task for task in TASKS.values() if task.split == "test"]
    assert (len(train), len(test)) == (24, 36)
    assert {task.family for task in train} == {task.family for task in test} == set(SHAPES)
    assert len({task.instruction for task in TASKS.values()}) == 60
    assert not {task.files for task in train} & {task.files for task in test}


def test_data_is_reproducible() -> None:
    text = json.dumps([[task.inputs(case) for case in (EXAMPLE, *HIDDEN)] for task in TASKS.values()])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "7faa2c4a2780174a"


def test_a_row_contains_the_example_and_nothing_hidden() -> None:
    for task in TASKS.values():
        row = json.dumps(task.task())
        assert f'"{task.family}"' not in row
        for case in HIDDEN:
            texts = list(task.inputs(case).values())
            assert not any(len(text) > 40 and json.dumps(text)[1:-1] in row for text in texts)


def test_an_example_is_not_right_by_accident() -> None:
    for task in TASKS.values():
        assert task.example()["output"].strip() not in accidents(next(iter(task.inputs(EXAMPLE).values())))


@pytest.mark.parametrize("family", sorted(SHAPES))
def test_checks_accept_only_the_correct_answer(sandbox: Sandbox, family: str) -> None:
    task = some_task(family)
    right = sandbox.check(family, cases(task))
    assert len(right) >= 2 * len(HIDDEN)
    assert [verdict for verdict in right if not verdict.passed] == []
    for wrong in ("", "0\n", task.inputs("ordinary")[task.files[0]]):
        assert not all(verdict.passed for verdict in sandbox.check(family, cases(task, wrong)))


def test_recipes_are_lines_with_a_description_and_a_pipeline() -> None:
    prompt = (
        "Hello.\n- count; how many: wc -l < {input}\n- no pipeline here\n* all: cat {input} | awk '{print \"a: b\"}'\n"
    )
    found = recipes(prompt)
    assert [one.phrases for one in found] == [("count", "how many"), ("all",)]
    assert found[1].pipeline == "cat {input} | awk '{print \"a: b\"}'"
    assert script(found[0].pipeline, ["a.txt", "b c.txt"]) == "wc -l < a.txt 'b c.txt'"


def test_the_nearest_recipe_is_chosen() -> None:
    prompt = "- add up numbers: awk {input}\n- remove duplicate lines: uniq {input}"
    chosen = choose(prompt, "Drop repeated lines from a.txt.")
    assert chosen.recipe is not None
    assert chosen.recipe.pipeline == "uniq {input}"
    assert choose("no recipe", "Drop repeated lines.").recipe is None
    assert choose(prompt, "Zebra quantum opera.").recipe is None


def test_a_pipeline_is_parsed_from_the_answer_of_a_model() -> None:
    assert pipeline_of("Here:\n```bash\nsort {input} | uniq\n```\nDone.") == "sort {input} | uniq"
    assert pipeline_of("`wc -l < {input}`") == "wc -l < {input}"
    assert pipeline_of(" \n") is None
    assert re.search(r"Files: visits.csv\nExample:\nvisits.csv holds:\n", task_question(TASKS["train:0"]))
    assert task_question(TASKS["train:0"]).endswith("It is judged on other files of the same kind.")
