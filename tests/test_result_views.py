"""Candidates, tree and rows of a result as frozen records and as tables."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.example import Example, example_config

from synth_optimizers import GepaRun, GepaRunResult
from synth_optimizers.client.view_records import RowTable, whole_table
from synth_optimizers.errors import ConfigError, OptimizerIoError

SMALL: dict[str, object] = {"gepa__max_generations": 2, "gepa__max_total_rollouts": 160, "cache__mode": "off"}


@pytest.fixture(scope="module")
def finished(example: Example, tmp_path_factory: pytest.TempPathFactory) -> GepaRunResult:
    """Return the result of a small run."""
    path = example_config(tmp_path_factory.mktemp("views"), example, **SMALL)
    return GepaRun.from_toml(path).execute()


def test_candidates_have_texts_scores_and_the_best_one_is_marked(finished: GepaRunResult) -> None:
    candidates = finished.candidates
    assert len(candidates) == finished.candidate_count == finished.to_dict()["candidates"] > 1
    assert candidates[0].payload == finished.initial_prompt
    best = candidates[finished.best_candidate["candidate_id"]]
    assert (best.is_best, best.payload) == (True, finished.best_prompt)
    assert [known.is_best for known in candidates].count(True) == 1
    with pytest.raises(KeyError):
        candidates["gepa_nobody"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        candidates.items = ()  # type: ignore[misc]
    record = candidates.to_records()[0]
    assert record["text.router_prompt"] == finished.initial_prompt["router_prompt"]
    assert {"train_mean", "train_n", "train_low", "heldout_mean", "parent_ids"} <= set(record)


def test_the_tree_has_the_same_candidates_with_reasons(finished: GepaRunResult) -> None:
    tree = finished.lineage
    assert [known.candidate_id for known in tree.candidates] == [known.candidate_id for known in finished.candidates]
    assert tree.best_candidate_id == finished.best_candidate["candidate_id"]
    assert all(known.reason for known in tree.candidates)
    records = tree.to_records()
    assert [record["candidate_id"] for record in records] == [known.candidate_id for known in tree.candidates]
    best = next(record for record in records if record["is_best"])
    assert finished.scores.best_train is not None
    assert best["train_mean"] == pytest.approx(finished.scores.best_train.mean)
    assert {"parent_ids", "reason", "minibatch_mean", "heldout_low", "sprint"} <= set(best)
    with pytest.raises(dataclasses.FrozenInstanceError):
        tree.metric = "other"  # type: ignore[misc]


def test_rows_have_one_cell_per_candidate(finished: GepaRunResult) -> None:
    table = finished.rows
    assert (table.split, table.row_count) == ("train", len(table.rows))
    assert all(len(row.cells) == len(table.candidate_ids) for row in table.rows)
    whole = finished.row_table("heldout", candidates="all", order="id")
    assert len(whole.candidate_ids) == finished.candidate_count
    assert finished.scores.seed_heldout is not None
    assert len(whole.rows) == finished.scores.seed_heldout.n
    values = [row.cells[0] for row in whole.rows if isinstance(row.cells[0], float)]
    assert sum(values) / len(values) == pytest.approx(finished.scores.seed_heldout.mean)
    named = finished.row_table(candidates=[table.candidate_ids[0]])
    assert named.candidate_ids == table.candidate_ids[:1]
    assert named.to_records()[0].keys() >= {"example_id", "gain", "best_value", table.candidate_ids[0]}
    with pytest.raises(ConfigError, match="not a metric"):
        finished.row_table(metric="speed")


def test_windows_are_joined_also_if_a_row_moves_between_them() -> None:
    def window(query: dict[str, int]) -> dict[str, Any]:
        row, column = query["offset"], query.get("candidate_offset", 0)
        # The second row is missing in the second window.
        known = {"example_id": f"r{row}", "cells": [row + column / 10]}
        return {
            "rows": [] if (row, column) == (1, 1) else [known],
            "candidates": [{"candidate_id": f"c{column}"}],
            "row_count": 2,
            "candidate_count": 2,
            "next_offset": 1 if row == 0 else None,
            "next_candidate_offset": 1 if column == 0 else None,
        }

    table: RowTable = whole_table(window)
    assert [row.cells for row in table.rows] == [[0.0, 0.1], [1.0, None]]
    assert table.candidate_ids == ("c0", "c1")
    assert (table.next_offset, table.next_candidate_offset) == (None, None)
    assert [known["candidate_id"] for known in table.to_dict()["candidates"]] == ["c0", "c1"]


def test_without_pandas_the_error_says_what_to_do(finished: GepaRunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = importlib.import_module

    def missing(name: str, package: str | None = None) -> ModuleType:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'")
        return imported(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    for table in (finished.rows, finished.candidates, finished.lineage):
        with pytest.raises(ConfigError, match="requires the package pandas") as caught:
            table.to_dataframe()
        assert "pip install pandas" in caught.value.hint
        assert "to_records()" in caught.value.hint


def test_with_pandas_the_records_become_a_frame(finished: GepaRunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    class DataFrame:
        @staticmethod
        def from_records(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return records

    module = ModuleType("pandas")
    module.DataFrame = DataFrame  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", module)
    assert finished.rows.to_dataframe() == finished.rows.to_records()
    assert finished.candidates.to_dataframe() == finished.candidates.to_records()
    assert finished.lineage.to_dataframe() == finished.lineage.to_records()


def test_a_deleted_directory_is_an_error_with_a_hint(finished: GepaRunResult, tmp_path: Path) -> None:
    gone = dataclasses.replace(finished, run_dir=str(tmp_path / "gone"))
    for name in ("candidates", "lineage", "rows"):
        with pytest.raises(OptimizerIoError) as caught:
            getattr(gone, name)
        assert caught.value.hint
