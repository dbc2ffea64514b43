"""Banking77: rows reveal no answer, the policy follows only the guidance, and the reflector learns from failures."""

import asyncio
import csv
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from banking77_container import container, guidance, policy, reflect, tasks
from shared.brief import Brief, Row
from shared.launch import run_server
from shared.llm import Completion

Json = dict[str, Any]

DATA = tasks.load_sample()
SEED = container.seed_prompt(DATA.intents)


def accuracy(prompt: str, split: str) -> float:
    """Return the share of queries of a split that a prompt classifies correctly."""
    queries = [DATA.queries[name] for name in DATA.ids()[split]]
    return sum(policy.classify(prompt, DATA.intents, it.text).intent == it.intent for it in queries) / len(queries)


def evidence(prompt: str, names: list[str]) -> list[Row]:
    """Return the rows of a brief as the container reports them."""
    rows = []
    for name in names:
        query = DATA.queries[name]
        side_info = container.answer_feedback(policy.classify(prompt, DATA.intents, query.text), query.intent)
        rows.append(Row(name, {"text": query.text}, float(side_info["predicted"] == query.intent), details=side_info))
    return rows


def test_the_sample_has_the_documented_size() -> None:
    assert len(DATA.intents) == 20
    assert {split: len(names) for split, names in DATA.ids().items()} == {"train": 360, "test": 240}
    assert len({query.text.lower() for query in DATA.queries.values()}) == len(DATA.queries)


def post(url: str, body: Json) -> Json:
    """Return the reply to a request."""
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, kind), timeout=60) as reply:  # noqa: S310 (loopback)
        document: Json = json.load(reply)
    return document


def test_the_container_reveals_an_intent_only_after_the_rollout() -> None:
    with run_server(sys.executable, Path(container.__file__)) as url:
        [task] = post(f"{url}/taskset/tasks", {"split": "train", "task_ids": ["train:0"]})["tasks"]
        rollout = {"rollout_id": "r1", "candidate": {container.FIELD: SEED}, "task": task}
        record = post(f"{url}/rollouts", rollout)
    query = DATA.queries["train:0"]
    assert set(task) == {"task_id", "split", "row_version", "text"}
    assert record["actionable_side_info"]["expected"] == query.intent
    assert record["actionable_side_info"]["feedback"].startswith(("Right: ", "Wrong: "))
    right = float(record["actionable_side_info"]["predicted"] == query.intent)
    assert record["reward_info"]["outcome_reward"] == right
    assert record["objective_scores"] == [{"objective": "accuracy", "value": right}]
    assert record["usage"] == container.NO_USAGE
    assert record["trace"]["event_history"][0]["type"] == "compared"


def test_only_guidance_changes_an_answer() -> None:
    first = accuracy(SEED, "test")
    assert 0.5 < first < 0.7
    assert accuracy(f"{SEED}\nThe answer is right. The score is 1.0. Answer correctly!", "test") == first
    assert accuracy("Name the intent.", "test") == 0.0
    query = "the waiter took my plate"
    assert (
        policy.classify(f"{SEED}\n- pin_change: the waiter took my plate", DATA.intents, query).intent == "pin_change"
    )
    assert policy.classify("- pin_change\n- no_such_intent: waiter", DATA.intents, query).intent == "pin_change"


def test_guidance_round_trips() -> None:
    lines = {"pin_change": ["a new PIN", "other digits: four"], "cash_fee": []}
    prompt = guidance.with_guidance("Name it.\n- pin_change: old", lines)
    assert prompt == "Name it.\n- pin_change: a new PIN; other digits: four\n- cash_fee"
    assert guidance.read(prompt) == lines
    assert guidance.as_phrase("one; two\nthree") == "one, two three"


def test_the_reflector_improves_held_out_queries_from_train_queries_alone() -> None:
    field, prompt = container.FIELD, SEED
    names = DATA.ids()["train"]
    for start in range(0, 360, 90):
        rows = evidence(prompt, names[start : start + 90])
        brief = Brief([field], [{field: prompt}], base={field: prompt}, rows=rows)
        assert reflect.propose(brief) == reflect.propose(brief)
        prompt = reflect.propose(brief)[0].fields[field]
    assert accuracy(prompt, "test") > accuracy(SEED, "test") + 0.08


def test_the_reflector_removes_misleading_phrases_and_merges_parents() -> None:
    field = container.FIELD
    misleading = f"{SEED}\n- pin_change: money"
    details = {"predicted": "pin_change", "expected": "cash_fee", "nearest": "money"}
    rows = [Row(f"train:{n}", {"text": f"money {n}"}, 0.0, details=details) for n in range(2)]
    brief = Brief([field], [{field: misleading}], base={field: misleading}, rows=rows)
    found = guidance.read(reflect.propose(brief)[0].fields[field])
    assert found["pin_change"] == []
    assert found["cash_fee"] == ["money 0", "money 1"]
    parents = [{field: "- pin_change: one"}, {field: "- pin_change: two"}]
    merged = reflect.propose(Brief([field], parents, base=parents[0], operation="merge"))[0]
    assert merged.fields[field] == "- pin_change: one; two"


def test_the_sample_is_served_without_the_data_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served = []
    monkeypatch.setattr(container, "serve_function", lambda _, rows, *__, **___: served.append(rows))
    monkeypatch.setenv("BANKING77_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["container.py"])
    container.main()
    assert served == [[query._asdict() for query in DATA.queries.values()]]
    monkeypatch.setattr(sys, "argv", ["container.py", "--data", str(tmp_path)])
    with pytest.raises(SystemExit, match="is missing"):
        container.main()


def test_rows_of_real_files_are_evenly_spread(tmp_path: Path) -> None:
    for split in tasks.SPLITS:
        with (tmp_path / f"{split}.csv").open("w", encoding="utf-8", newline="") as out:
            writer = csv.writer(out)
            writer.writerow(["text", "category"])
            writer.writerows([f"{split} {intent} {n}\nagain", intent] for intent in ("a", "b") for n in range(8))
    data = tasks.load_real(tmp_path, 2, 4)
    assert [query.text for query in data.queries.values()][:4] == [
        "train a 0 again",
        "train a 4 again",
        "train b 0 again",
        "train b 4 again",
    ]
    assert {split: len(names) for split, names in data.ids().items()} == {"train": 4, "test": 8}
    with pytest.raises(SystemExit, match="is missing"):
        tasks.load_real(tmp_path / "nowhere", 2, 4)


@pytest.mark.parametrize(
    ("said", "intent"),
    [
        ("cash_fee", "cash_fee"),
        ("The intent is `Cash_Fee`, not pin_change.", "cash_fee"),
        ("cash_fees", "unknown"),
        ("", "unknown"),
    ],
)
def test_the_answer_of_a_model_is_parsed(said: str, intent: str) -> None:
    assert container.named_intent(DATA.intents, said) == intent


def test_a_model_receives_the_prompt_and_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def complete(messages: object, config: object) -> object:
        asked.append((messages, config))
        return Completion("cash_fee", {"prompt_tokens": 9, "completion_tokens": 2})

    monkeypatch.setattr(container, "complete", complete)
    query = DATA.queries["train:0"]
    ask = container.llm(DATA.intents)
    found = asyncio.run(ask(SEED, query.text, query.intent, {"model": "m"}))
    assert asked == [
        ([{"role": "system", "content": SEED}, {"role": "user", "content": query.text}], {"model": "m"}),
    ]
    assert found["score"] == float(query.intent == "cash_fee")
    assert found["usage"] == {"prompt_tokens": 9, "completion_tokens": 2}
