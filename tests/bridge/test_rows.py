"""Loading rows, dividing them, and what is said about them."""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bridge import PYTHON, run_command

from synth_optimizers import GepaRun
from synth_optimizers.bridge import BridgeError, gain_sentence, load_task, smallest_gain
from synth_optimizers.bridge.rows import SourceRow, load_rows
from synth_optimizers.bridge.split import HELDOUT, TRAIN, Taskset, divide


def write(folder: Path, name: str, contents: str | bytes) -> str:
    path = folder / name
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    return str(path)


def values(source: str) -> list[dict[str, Any]]:
    return [row.values for row in load_rows(source)]


def test_csv_keeps_texts_as_they_are(tmp_path: Path) -> None:
    contents = '\ufeffname,code\r\n"a, ""b""\nc",007\r\n\r\nd,1e5\r\n'
    rows = load_rows(write(tmp_path, "rows.csv", contents))
    assert [row.values for row in rows] == [{"name": 'a, "b"\nc', "code": "007"}, {"name": "d", "code": "1e5"}]
    assert [row.place.rpartition(":")[2] for row in rows] == ["2", "5"]


def test_other_kinds_are_read(tmp_path: Path) -> None:
    expected = [{"a": 1, "b": "x\u2028y"}, {"a": None, "b": [1.5]}]
    assert values(write(tmp_path, "rows.json", json.dumps(expected))) == expected
    assert values(write(tmp_path, "rows.json", json.dumps({"version": 1, "data": expected}))) == expected
    lines = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in expected)
    assert values(write(tmp_path, "rows.jsonl", lines)) == expected
    assert values(write(tmp_path, "rows.tsv", "a\tb\n1\t,\n")) == [{"a": "1", "b": ","}]
    module = write(tmp_path, "given_rows.py", f"rows = {expected!r}\ndef made(): return tuple(rows)\n")
    assert values(f"{module}:rows") == values(f"{module}:made") == expected


@pytest.mark.parametrize(
    ("name", "contents", "code", "words"),
    [
        ("a.csv", "", "rows_empty", "a.csv has no rows"),
        ("a.csv", "x,y\n", "rows_empty", "has no rows"),
        ("a.csv", "x,x\n1,2\n", "rows_header", "a.csv:1 has two columns 'x'"),
        ("a.csv", ",x\n1,2\n", "rows_header", "column 1 in the header"),
        ("a.csv", "x,y\n1,2\n1\n", "rows_invalid", "a.csv:3 has 1 values, but the header has 2 columns"),
        ("a.csv", 'x,y\n1,2\n"1,2\n', "rows_invalid", "a.csv:3 is not valid CSV"),
        ("a.csv", b"x,y\n1,2\n1,\xff\n", "rows_encoding", "a.csv:3 is not UTF-8 (byte 0xff)"),
        ("a.json", "[1]", "rows_invalid", "a.json: entry 0 is a number, not an object"),
        ("a.json", "3", "rows_invalid", "is a number, not a list of objects"),
        ("a.json", '{"a": [], "b": []}', "rows_invalid", "2 lists ('a', 'b')"),
        ("a.json", '[{"a": NaN}]', "rows_invalid", "NaN is not JSON"),
        ("a.json", "[{}]", "rows_invalid", "entry 0 has no columns"),
        ("a.json", "[" * 100000, "rows_invalid", "is not JSON"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', "rows_invalid", "a.jsonl:2:"),
        ("a.jsonl", '{"a": 1}\n[1]\n', "rows_invalid", "a.jsonl:2 is a list, not an object"),
        ("a.xlsx", "", "rows_kind", ".csv, .tsv, .json"),
        ("a.parquet", "no", "", "a.parquet"),
    ],
)
def test_bad_rows_are_refused_with_their_place(
    tmp_path: Path, name: str, contents: str | bytes, code: str, words: str
) -> None:
    with pytest.raises(BridgeError) as caught:
        load_rows(write(tmp_path, name, contents))
    assert caught.value.code.startswith(code)
    assert words in str(caught.value)


def test_missing_sources_are_named(tmp_path: Path) -> None:
    for source in ("nowhere.csv", str(tmp_path / "x.json"), "no_such_module:rows", f"{tmp_path}/x.py:rows"):
        with pytest.raises(BridgeError) as caught:
            load_rows(source)
        assert caught.value.code == "rows_not_found"


def test_missing_libraries_name_the_interpreter(folder: Path) -> None:
    (folder / "a.parquet").write_text("")
    for rows in ("a.parquet", "hf:some/data"):
        done = run_command(folder, "describe", "evals.py:evaluate", "--rows", rows, "--text", "prompt=x", python=PYTHON)
        error = json.loads(done.stdout)["error"]
        assert done.returncode == 2
        # An interpreter of a developer may have these libraries.
        assert error["code"] in ("library_missing", "rows_invalid", "rows_not_found")


def test_parquet_is_read_with_a_library_of_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Table:
        @staticmethod
        def read_table(_: str) -> Table:
            return Table()

        @staticmethod
        def to_pylist() -> list[dict[str, Any]]:
            return [{"a": 1, "b": float("nan")}]

    monkeypatch.setitem(sys.modules, "pyarrow", Table)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", Table)
    assert values(write(tmp_path, "a.parquet", "")) == [{"a": 1, "b": None}]


def test_splits_of_a_hub_dataset_are_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        @staticmethod
        def load_dataset(name: str, split: str | None = None) -> Any:
            found = {"train": [{"a": name}], "validation": [{"a": 2}]}
            return found[split] if split else found

    monkeypatch.setitem(sys.modules, "datasets", Library)
    assert values("hf:some/data") == [{"a": "some/data", "split": "train"}, {"a": 2, "split": "validation"}]
    assert values("hf:some/data:validation") == [{"a": 2}]


def test_rows_of_python_must_be_json() -> None:
    with pytest.raises(BridgeError, match=r"rows\[0\]\.a is b'x' \(bytes\)"):
        load_rows([{"a": b"x"}])
    with pytest.raises(BridgeError, match=r"rows\[1\]\.a\[0\] is nan"):
        load_rows([{"a": 1}, {"a": [float("nan")]}])
    with pytest.raises(BridgeError, match="a column named 1"):
        load_rows([{1: 2}])  # type: ignore[dict-item]
    with pytest.raises(BridgeError, match="not a list of mappings"):
        load_rows({"a": 1})  # type: ignore[dict-item]


def split(rows: list[dict[str, Any]], **options: Any) -> Taskset:
    return divide([SourceRow(row, f"rows[{index}]") for index, row in enumerate(rows)], **options)


def test_labels_stay_in_the_container() -> None:
    found = split([{"Question": str(n), "Answer": "secret", "Gold": "secret"} for n in range(5)])
    assert found.labels == ["Answer", "Gold"]
    for task in found.tasks.values():
        assert set(task.served) == {"task_id", "split", "Question"}
        assert task.row["Answer"] == "secret"
    with pytest.raises(BridgeError, match="Did you mean 'Gold'"):
        split([{"Question": "a", "Gold": 1}], labels=["gold_"])
    with pytest.raises(BridgeError, match="every column is a label"):
        split([{"label": 1}])


def test_a_split_column_is_obeyed() -> None:
    words = ["train", "Test", "validation", "val", "dev", "eval", "heldout", "train"]
    found = split([{"x": n, "split": word} for n, word in enumerate(words)])
    sides = {task.row["split"]: task.split for task in found.tasks.values()}
    assert {word: side for word, side in sides.items() if side == TRAIN} == {"train": TRAIN}
    assert len(found.ids(HELDOUT)) == 6
    assert all("split" in task.served and task.served["split"] == task.split for task in found.tasks.values())
    with pytest.raises(BridgeError, match=r"'split' of rows\[1\] is 'other', not a split"):
        split([{"x": 1, "split": "train"}, {"x": 2, "split": "other"}])
    with pytest.raises(BridgeError, match="no row is held-out"):
        split([{"x": 1, "split": "train"}])
    both = split([{"x": 1, "part": "train"}, {"x": 1, "part": "test"}], split_column="part")
    assert both.on_both_sides == 1
    with pytest.raises(BridgeError, match="Did you mean 'part'"):
        split([{"x": 1, "part": "train"}], split_column="parts")


def test_equal_inputs_are_on_one_side_and_have_their_own_ids() -> None:
    rows = [{"x": text, "label": n} for n, text in enumerate(["Same  text", "same text ", "SAME TEXT"] * 3)]
    found = split([*rows, *({"x": f"other {n}", "label": 0} for n in range(5))])
    assert found.duplicates == 8
    assert len(found.tasks) == 14
    assert len({task.split for task in found.tasks.values() if "same" in task.row["x"].lower()}) == 1
    exact = split([{"x": 1}, {"x": 1}, {"x": 2}])
    assert len(exact.tasks) == 3


def test_rows_that_are_all_the_same_have_no_held_out_rows() -> None:
    with pytest.raises(BridgeError) as caught:
        split([{"x": 1}, {"x": 1}])
    assert caught.value.code == "split_empty"


@given(st.integers(2, 80), st.integers(0, 5), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_neither_order_nor_more_rows_move_a_row(count: int, seed: int, chance: random.Random) -> None:
    rows = [{"x": f"row {number}", "label": number % 2} for number in range(count)]
    first = split(rows, seed=seed)
    assert first.ids(TRAIN)
    assert first.ids(HELDOUT)
    shuffled = list(rows)
    chance.shuffle(shuffled)
    again = split(shuffled, seed=seed)
    assert {task_id: task.split for task_id, task in again.tasks.items()} == {
        task_id: task.split for task_id, task in first.tasks.items()
    }
    assert again.ids(TRAIN) == first.ids(TRAIN)
    if count >= 40:
        more = split([*rows, *({"x": f"new {number}", "label": 0} for number in range(30))], seed=seed)
        assert all(more.tasks[task_id].split == task.split for task_id, task in first.tasks.items())


def test_the_share_of_held_out_rows_is_about_the_wanted_one() -> None:
    found = split([{"x": number} for number in range(2000)], heldout=0.3)
    assert 0.26 < len(found.ids(HELDOUT)) / 2000 < 0.34
    with pytest.raises(BridgeError, match="--heldout is 1"):
        split([{"x": 1}, {"x": 2}], heldout=1)


def test_a_unique_id_column_names_the_rows() -> None:
    found = split([{"id": f"t-{n}", "x": n // 2, "label": 0} for n in range(6)])
    assert set(found.tasks) == {f"t-{n}" for n in range(6)}
    assert found.duplicates == 3, "the id is not part of the input"
    changed = split([{"id": f"t-{n}", "x": n // 2, "label": 1} for n in range(6)])
    assert found.tasks["t-0"].served != changed.tasks["t-0"].served, "a changed label is a changed row"
    repeated = split([{"id": 1, "x": 1}, {"id": 1, "x": 2}])
    assert all(task_id.startswith("r-") for task_id in repeated.tasks)


def test_columns_may_be_named_like_keys_of_a_task() -> None:
    rows = [{"task_id": 1, "columns": "c", "seed": n, "id": None, "example_id": "e"} for n in range(4)]
    found = split(rows)
    for task_id, task in found.tasks.items():
        assert task.served["task_id"] == task_id
        assert task.served["columns"] == {"task_id": 1, "columns": "c"}
        assert task.served["seed"] == task.row["seed"]


def test_what_held_out_rows_can_show() -> None:
    assert gain_sentence(60) == "with 60 held-out rows a gain above 0.17 can be told from luck"
    assert gain_sentence(1) == "with 1 held-out row no gain can be told from luck"
    assert gain_sentence(8) == "with 8 held-out rows no gain can be told from luck"
    assert smallest_gain(0) is None
    gains = [smallest_gain(count) or 0 for count in range(9, 500)]
    assert gains == sorted(gains, reverse=True)
    assert all(0 < gain < 1 for gain in gains)


def test_the_smallest_gain_is_found_in_four_of_five_runs() -> None:
    chance, count, found = random.Random(1), 60, 0  # noqa: S311 (no secret)
    gain = smallest_gain(count) or 0
    for _ in range(2000):
        # A few rows change without a gain.
        draws = [chance.random() for _ in range(count)]
        losses = sum(draw < 0.025 for draw in draws)
        wins = sum(0.025 <= draw < 0.05 + gain for draw in draws)
        changed = wins + losses
        p_value = 2 * sum(math.comb(changed, fewer) for fewer in range(losses + 1)) / 2**changed
        found += wins > losses and p_value <= 0.05
    assert 0.75 < found / 2000 < 0.95


@pytest.mark.parametrize("heldout_rows", [1, 8, 9, 19, 60, 300])
def test_the_plan_of_a_run_uses_the_same_formula(heldout_rows: int) -> None:
    config = {
        "run": {"run_id": "plan"},
        "container": {"url": "http://127.0.0.1:1"},
        "candidate": {"target_modules": ["prompt"]},
        "dataset": {"train_seeds": "0..9", "heldout_seeds": f"0..{heldout_rows - 1}"},
        "proposer": {"model": "any"},
        "gepa": {"max_total_rollouts": 2000},
    }
    plan = GepaRun.from_config(config).plan()
    assert plan.heldout_rows == heldout_rows
    assert plan.smallest_gain == smallest_gain(heldout_rows)
    assert f"The held-out rows judge the result: {gain_sentence(heldout_rows)}." in plan.notes


def test_warnings_name_columns() -> None:
    rows: list[dict[str, Any]] = [
        {"x": 1, "y": "a", "api_key": "k"},
        {"x": "1", "api_key": "k"},
        {"x": None, "y": None, "api_key": "k"},
    ]
    warnings = "\n".join(load_task(lambda prompt, row: 1, rows, {"prompt": "p"}).warnings)  # noqa: ARG005
    assert "column 'x' has values of several types: 1 number, 1 text, 1 null" in warnings
    assert "column 'y' is missing in 1 of 3 rows" in warnings
    assert "'api_key' is named like a credential" in warnings
    assert "no column is a label" in warnings
