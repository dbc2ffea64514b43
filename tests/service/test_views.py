"""The tree of candidates, the table of rows, proposer turns and comparisons over HTTP and in the client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.service import Service

from synth_optimizers.client import Client


@pytest.fixture(scope="module")
def reader(done: Service) -> Iterator[Client]:
    """Yield a client of the service with completed runs."""
    with Client(done.url) as client:
        yield client


def test_the_tree_has_every_candidate_with_its_reason(reader: Client, done: Service) -> None:
    raw = done.get("/runs/router/lineage")
    tree = reader.lineage("router")
    assert tree.to_dict() == raw
    listed = [known["candidate_id"] for known in done.get("/runs/router/candidates", limit=200)["items"]]
    assert [known.candidate_id for known in tree.candidates] == listed
    assert tree.candidates[0].reason == "the initial candidate"
    assert all(known.reason for known in tree.candidates)
    assert [known.candidate_id for known in tree.candidates if known.is_best] == [tree.best_candidate_id]
    places = {known.candidate_id: place for place, known in enumerate(tree.candidates)}
    assert all(places[parent] < places[known.candidate_id] for known in tree.candidates for parent in known.parent_ids)


def test_the_table_has_every_row_of_both_splits(reader: Client, done: Service) -> None:
    for split, count in (("train", 12), ("heldout", 4)):
        table = reader.rows("router", split=split, candidates="all")
        assert table.to_dict() == done.get("/runs/router/rows", split=split, candidates="all")
        assert (table.row_count, len(table.rows), table.split) == (count, count, split)
        assert all(len(row.cells) == len(table.candidate_ids) for row in table.rows)
        assert all(record[table.candidate_ids[0]] is not None for record in table.to_records())
    first = reader.rows("router", order="id", limit=5)
    assert first.next_offset == 5
    assert len(reader.rows("router", order="id", limit=50, offset=5).rows) == 7


def test_turns_have_their_proposals_and_their_transcripts(reader: Client, done: Service) -> None:
    turns = list(reader.turns("router", page_size=2))
    assert [known.to_dict() for known in turns] == done.get("/runs/router/turns")["items"]
    assert [known.turn for known in turns] == [1, 2, 3]
    registered = [
        each["candidate_id"] for known in turns for each in known.proposals if each["outcome"] == "registered"
    ]
    assert registered == [
        known.candidate_id for known in reader.lineage("router").candidates if known.operation == "mutate"
    ]
    detail = reader.turn("router", 1)
    assert detail.to_dict() == done.get("/runs/router/turns/1")
    assert detail.transcript["problem"] is None
    assert "router_prompt" in detail.transcript["shown"][-1]["text"]
    assert detail.transcript["answered"]
    assert len(detail.answer["proposals"]) == 2


def test_runs_and_candidates_are_compared(reader: Client, done: Service) -> None:
    two = reader.compare("router", "other")
    assert two.to_dict() == done.get("/runs/router/compare/other")
    settings = {known["field"]: (known["left"], known["right"]) for known in two.settings}
    assert settings["gepa.max_generations"] == (3, 1)
    assert "run.run_id" not in settings
    tree = reader.lineage("router")
    one = reader.compare("router", "router")
    assert (one.left["candidate_id"], one.right["candidate_id"]) == (tree.initial_candidate_id, tree.best_candidate_id)
    first, second = (tree.candidates[place].candidate_id for place in (0, 1))
    there = reader.compare("router", "router", candidate_id=first, other_candidate_id=second)
    back = reader.compare("router", "router", candidate_id=second, other_candidate_id=first)
    assert there.train_gain is not None
    assert back.train_gain is not None
    assert back.train_gain.difference == -there.train_gain.difference
    assert (there.texts[0].left, there.texts[0].right) == (back.texts[0].right, back.texts[0].left)
    same = reader.compare("router", "router", candidate_id=first, other_candidate_id=first)
    assert "both sides are the same candidate" in same.notes


def test_a_run_that_never_started_has_empty_views(done: Service) -> None:
    assert done.get("/runs/c0/lineage")["candidates"] == []
    assert done.get("/runs/c0/rows")["rows"] == []
    assert done.get("/runs/c0/turns") == {"items": [], "next_cursor": None}
