"""The reflector finds pipelines from the evidence alone, and learns which of them are too specific."""

from __future__ import annotations

import pytest
from shared.brief import MERGE, Brief, Row
from tblite_container import search
from tblite_container.container import FIELD, SEED_PROMPT
from tblite_container.policy import recipes
from tblite_container.reflect import asking, merged, propose
from tblite_container.sandbox import Command, Outcome, Sandbox
from tblite_container.search import Example
from tblite_container.tasks import load_tasks

TASKS = load_tasks()


def row(task_id: str, **details: object) -> Row:
    return Row(task_id, TASKS[task_id].task(), 0.0, ["Failed."], details=dict(details))


def brief(*rows: Row, prompt: str = SEED_PROMPT) -> Brief:
    return Brief([FIELD], [{FIELD: prompt}], rows=list(rows))


def test_a_failed_task_becomes_a_recipe_in_general_words() -> None:
    (proposal,) = propose(brief(row("train:6"), row("train:18")))
    added = recipes(proposal.fields[FIELD])[-1]
    assert added.pipeline == "awk '!seen[$0]++' {input}"
    assert added.phrases == tuple(asking(TASKS[name].instruction) for name in ("train:6", "train:18"))
    assert proposal.fields[FIELD].startswith(SEED_PROMPT)
    assert "playlist" not in proposal.fields[FIELD]


def test_equal_briefs_give_equal_answers() -> None:
    task_question = brief(row("train:1"), row("train:9"))
    assert propose(task_question) == propose(task_question)


def test_an_existing_recipe_gets_another_phrase() -> None:
    prompt = f"{SEED_PROMPT}\n- lines in both files: sort {{input}} | uniq -d"
    (proposal,) = propose(brief(row("train:9", pipeline="cat {input}"), prompt=prompt))
    assert len(recipes(proposal.fields[FIELD])) == 3
    assert len(recipes(proposal.fields[FIELD])[-1].phrases) == 2


def test_a_pipeline_that_fits_only_the_example_is_replaced() -> None:
    first = "awk -F, '{s += $2} END {print s}' {input}"
    prompt = f"{SEED_PROMPT}\n- all: {first}"
    (proposal,) = propose(brief(row("train:5", pipeline=first, example_passed=True), prompt=prompt))
    pipelines = [one.pipeline for one in recipes(proposal.fields[FIELD])]
    assert first not in pipelines
    assert "sort -t, -k2,2n {input} | tail -n 1" in pipelines


def test_without_evidence_nothing_is_proposed() -> None:
    assert propose(brief(Row("train:0"), Row("train:1", TASKS["train:1"].task(), 1.0))) == []


def test_a_merge_has_all_recipes() -> None:
    left, right = f"{SEED_PROMPT}\n- a: sort {{input}}", f"{SEED_PROMPT}\n- b: sort {{input}}\n- c: tac {{input}}"
    (proposal,) = propose(Brief([FIELD], [{FIELD: left}, {FIELD: right}], operation=MERGE))
    assert proposal.fields[FIELD] == f"{SEED_PROMPT}\n- a; b: sort {{input}}\n- c: tac {{input}}"
    assert merged([left, left]) == left


@pytest.mark.parametrize(
    ("text", "output", "found"),
    [
        ("b,2\na,1\nb,3\nc,9\n", "1 a\n2 b\n1 c\n", "cut -d, -f1 {input} | sort | uniq -c | sed 's/^ *//'"),
        ("x WARN low\nx FATAL all lost\nx FATAL off\n", "all lost\noff\n", "grep FATAL {input} | cut -d' ' -f3-"),
    ],
)
def test_pipelines_are_found_by_running_them(sandbox: Sandbox, text: str, output: str, found: str) -> None:
    assert search.pipelines(sandbox, Example((("a.txt", text),), output, "Show FATAL lines."))[0] == found


def test_no_pipeline_is_invented(sandbox: Sandbox) -> None:
    assert search.pipelines(sandbox, Example((("a.txt", "a b\n"),), "entirely different\n", "")) == []


def test_order_dependent_pipelines_are_recognized(sandbox: Sandbox) -> None:
    example = Example((("a.txt", "b\na\na\n"),), "a\n", "")
    assert search.order_independent(sandbox, ["tail -n 1 {input}", "sort {input} | uniq -d"], example) == [
        "sort {input} | uniq -d"
    ]


def test_recipes_of_a_prompt_are_not_run_with_limits_alone(limited: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts: list[str] = []

    class Heard:
        kind = limited.kind

        def run(self, commands: list[Command]) -> list[Outcome]:
            scripts.extend(command.script for command in commands)
            return limited.run(commands)

    heard = Heard()
    monkeypatch.setattr("tblite_container.reflect._sandbox", lambda: heard)
    monkeypatch.setattr("tblite_container.reflect._seen", {})
    foreign = "- take the lines: sort foreign {input}"
    assert propose(brief(row("train:6"), prompt=f"{SEED_PROMPT}\n{foreign}"))
    assert not any("foreign" in script for script in scripts)
