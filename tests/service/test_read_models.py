"""Finished runs: requests, candidates, rollouts, frontier and scores over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.example import Example
from support.service import Service

from service.short_runs import paged, sections


@pytest.fixture(scope="module")
def manifest(done: Service) -> dict[str, Any]:
    """Return the manifest of the completed run."""
    found: dict[str, Any] = done.get("/runs/router/artifacts/result_manifest.json")
    return found


def test_runs_are_paged_newest_first(done: Service) -> None:
    names = ["c4", "c3", "c2", "c1", "c0", "other", "router"]
    pages = paged(done, "/runs", limit=3)
    assert [[entry["run_id"] for entry in page] for page in pages] == [names[:3], names[3:6], names[6:]]
    assert [len(page) for page in paged(done, "/runs", limit=7)] == [7]
    assert done.get("/runs")["next_cursor"] is None
    assert pages[2][0] == done.request("router")


def test_runs_are_filtered_by_state(done: Service) -> None:
    assert [entry["run_id"] for entry in done.get("/runs", state="completed")["items"]] == ["other", "router"]
    pages = paged(done, "/runs", state="cancelled", limit=2)
    assert [len(page) for page in pages] == [2, 2, 1]
    assert len(done.get("/runs", state="cancelled, completed")["items"]) == 7
    assert done.get("/runs", state="running")["items"] == []


def test_a_run_that_never_started_has_no_results(done: Service) -> None:
    assert done.get("/runs/c0/candidates") == {"items": [], "next_cursor": None}
    assert done.get("/runs/c0/rollouts")["items"] == []
    assert done.get("/runs/c0/scores")["items"] == []
    assert done.get("/runs/c0/frontier")["size"] == 0
    assert done.get("/runs/c0/artifacts")["items"] == []
    detail = done.get("/runs/c0")
    assert (detail["run"], detail["usage"]) == (None, None)
    assert detail["models"]["proposer"] == {"requested": "offline-reflector", "effective": None}
    assert detail["request"]["error"]["reason_code"] == "cancelled"


def test_a_run_shows_models_origins_usage_and_history(done: Service, manifest: dict[str, Any]) -> None:
    detail = done.get("/runs/router")
    assert detail["models"] == {
        "policy": {"requested": "word-overlap", "effective": None},
        "proposer": {"requested": "offline-reflector", "effective": "offline-reflector"},
    }
    origins = {value["field"]: value for value in detail["origins"]}
    assert (origins["gepa.minibatch_size"]["value"], origins["gepa.minibatch_size"]["origin"][:5]) == (4, "file:")
    assert origins["gepa.carry_failures"]["origin"] == "default"
    usage = detail["usage"]
    assert {name: usage[name] for name in manifest["usage"]} == manifest["usage"]
    assert usage["rollouts"]["sent_calls"] + usage["proposer"]["sent_calls"] == usage["sent_calls"] == 95
    assert (usage["cost_usd"], detail["request"]["cost_usd"]) == (0.0, 0.0)
    assert usage == detail["request"]["usage"]
    steps = [(step["from"], step["to"], step["trigger"]) for step in detail["history"]]
    assert steps == [
        (None, "queued", "submit"),
        ("queued", "leased", "claim"),
        ("leased", "running", "start"),
        ("running", "completed", "complete"),
    ]
    assert [step["sequence"] for step in detail["history"]] == sorted(step["sequence"] for step in detail["history"])
    assert (detail["run"]["state"], detail["request"]["error"]) == ("completed", None)
    request = detail["request"]
    assert request["best_candidate_id"] == manifest["best_candidate"]["candidate_id"]
    assert request["result_manifest_path"] == manifest["manifest_path"]
    assert request["run_workspace_db_path"] == manifest["workspace_db_path"]
    assert request["result"]["best_candidate"]["payload"] == manifest["best_candidate"]["payload"]


def test_candidates_have_lineage_deltas_and_reasons(done: Service) -> None:
    registry = done.get("/runs/router/artifacts/candidate_registry.json")
    candidates = [entry for page in paged(done, "/runs/router/candidates", limit=3) for entry in page]
    assert [entry["candidate_id"] for entry in candidates] == [entry["candidate_id"] for entry in registry]
    known = {entry["candidate_id"]: entry for entry in candidates}
    for entry, registered in zip(candidates, registry, strict=True):
        shared = set(entry) & set(registered) - {"acceptance_metadata", "acceptance_score"}
        assert {name: entry[name] for name in shared} == {name: registered[name] for name in shared}
        parent = known.get(entry["parent_id"])
        assert entry["lineage"] == ([] if parent is None else [parent["candidate_id"], *parent["lineage"]])
        for change in entry["delta"]:
            assert parent is not None
            assert change["before"] == parent["payload"][change["field"]]
            assert change["after"] == entry["payload"][change["field"]] != change["before"]
        assert [change["field"] for change in entry["delta"]] == entry["changed_fields"]
        assert all(step["reason"] for step in entry["acceptance_metadata"])
        assert entry["registered_sequence"] < entry["updated_sequence"]
    assert candidates[0]["source"] == "seed"
    assert [entry["is_best"] for entry in candidates].count(True) == 1
    rejected = [entry for entry in candidates if entry["status"] == "rejected_full_train"]
    assert rejected == done.get("/runs/router/candidates", status="rejected_full_train")["items"]
    assert len(rejected) == 3
    assert len(done.get("/runs/router/candidates", accepted="true")["items"]) == 4
    assert len(done.get("/runs/router/candidates", generation=1)["items"]) == 2
    for entry in candidates:
        detail = done.get(f"/runs/router/candidates/{entry['candidate_id']}")
        assert {name: detail[name] for name in entry} == entry
        children = [child["candidate_id"] for child in candidates if entry["candidate_id"] in child["parent_ids"]]
        assert detail["children"] == children
        if entry["parent_id"] is not None:
            gain = entry["train_reward"] - known[entry["parent_id"]]["train_reward"]
            assert detail["train_gain"]["difference"] == pytest.approx(gain)


def test_rollouts_have_evidence_and_a_trace(done: Service, example: Example) -> None:
    rollouts = [entry for page in paged(done, "/runs/router/rollouts", limit=50) for entry in page]
    assert [entry["call_id"] for entry in rollouts] == sorted(entry["call_id"] for entry in rollouts)
    assert len(rollouts) == len({entry["rollout_id"] for entry in rollouts}) == 92
    assert {entry["rollout_id"] for entry in rollouts} <= {entry["rollout_id"] for entry in example.rollouts()}
    assert {entry["status"] for entry in rollouts} == {"finished"}
    heldout = [entry for page in paged(done, "/runs/router/rollouts", split="heldout") for entry in page]
    assert heldout == [entry for entry in rollouts if entry["evaluation_stage"] == "heldout"]
    assert len(heldout) == 8
    best = done.request("router")["best_candidate_id"]
    own = done.get("/runs/router/rollouts", candidate_id=best, stage="candidate_minibatch")["items"]
    # Only two rows were left with something to gain.
    assert len(own) == 2
    assert {entry["candidate_id"] for entry in own} == {best}
    first = own[0]
    plain = done.get(f"/runs/router/rollouts/{first['rollout_id']}")
    assert plain == {**first, "trace": None}
    traced = done.get(f"/runs/router/rollouts/{first['call_id']}", include="trace")
    assert traced["trace"]["reply"]["rollout_id"] == first["rollout_id"]
    assert traced["trace"]["reply"]["reward_info"]["outcome_reward"] == first["reward"]
    evidence = traced["trace"]["evidence"]
    assert evidence["feedback"][0]["text"].startswith(("Right: ", "Wrong: "))
    assert first["rollout_id"] not in json.dumps(evidence)


def test_the_frontier_holds_the_candidates_that_are_best_on_some_row(done: Service) -> None:
    frontier = done.get("/runs/router/frontier")
    written = done.get("/runs/router/artifacts/frontier.json")
    assert frontier["size"] == len(frontier["items"]) == len(written)
    for member, known in zip(frontier["items"], written, strict=True):
        assert {name: member[name] for name in known} == known
        assert member["cell_count"] == len(member["cells"]) > 0
    rows = {f"train:{seed}" for seed in range(12)}
    assert {cell["example_id"] for member in frontier["items"] for cell in member["cells"]} == rows
    assert frontier["frontier_type"] == "per_example"
    on_it = {entry["candidate_id"] for entry in done.get("/runs/router/candidates")["items"] if entry["on_frontier"]}
    assert {member["candidate_id"] for member in frontier["items"]} == on_it


def test_scores_agree_with_the_manifest_and_the_rollouts(done: Service, manifest: dict[str, Any]) -> None:
    page = done.get("/runs/router/scores")
    scores = page["items"]
    assert not page["has_more"]
    assert [score["sequence"] for score in scores] == sorted(score["sequence"] for score in scores)
    assert len({score["score_id"] for score in scores}) == len(scores)
    registry = next(
        known for known in done.get("/runs/router/artifacts")["items"] if known["name"] == "candidate_registry.json"
    )
    rollouts = [entry for entries in paged(done, "/runs/router/rollouts", limit=200) for entry in entries]
    for score in scores:
        assert (score["harness_id"], score["metric"], score["direction"]) == (
            *("ticket_router", "outcome_reward"),
            "maximize",
        )
        assert len(score["harness_digest"]) == 64
        assert score["artifact_ref"] == {"path": registry["name"], "sha256": registry["sha256"]}
        assert score["at"].endswith("Z")
        assert score["split"] == ("heldout" if score["stage"] == "heldout" else "train")
        of_stage = [
            entry["reward"]
            for entry in rollouts
            if entry["candidate_id"] == score["candidate_id"] and entry["evaluation_stage"] == score["stage"]
        ]
        if score["stage"] != "candidate_full_train":
            assert (len(of_stage), sum(of_stage) / len(of_stage)) == (score["n"], pytest.approx(score["value"]))
        else:
            # Rows of the minibatch are not evaluated again.
            screened = [
                entry
                for entry in rollouts
                if (entry["candidate_id"], entry["evaluation_stage"]) == (score["candidate_id"], "candidate_minibatch")
            ]
            assert (score["n"], len(of_stage)) == (12, 12 - len(screened))
    assert len({score["harness_digest"] for score in scores}) == 1
    best, seed = manifest["best_candidate"]["candidate_id"], scores[0]["candidate_id"]
    for who, name in ((best, "best"), (seed, "seed")):
        for split in ("train", "heldout"):
            told = manifest["scores"][name][split]
            full = ("seed_full_train", "candidate_full_train", "heldout")
            (found,) = [s for s in scores if (s["candidate_id"], s["split"]) == (who, split) and s["stage"] in full]
            assert (found["value"], found["n"]) == (told["mean"], told["n"])
            assert found["standard_error"] == told["standard_error"]


def test_scores_can_be_read_after_a_sequence_number(done: Service) -> None:
    whole = done.get("/runs/router/scores")["items"]
    found: list[dict[str, Any]] = []
    since = -1
    while True:
        page = done.get("/runs/router/scores", since=since, limit=2)
        found += page["items"]
        since = page["next_since"]
        if not page["has_more"]:
            break
    assert found == whole
    assert done.get("/runs/router/scores", since=since) == {"items": [], "next_since": since, "has_more": False}


def test_score_series_contain_the_same_scores(done: Service) -> None:
    scores = done.get("/runs/router/scores")["items"]
    known = done.get("/runs/router/scores/series")
    assert known["is_complete"]
    assert [(series["metric"], series["split"]) for series in known["series"]] == [
        ("outcome_reward", "train"),
        ("outcome_reward", "heldout"),
    ]
    for series in known["series"]:
        assert series["direction"] == "maximize"
        comparable = [s for s in scores if s["split"] == series["split"] and s["stage"] != "candidate_minibatch"]
        names = ("sequence", "at", "candidate_id", "value", "n", "standard_error")
        assert [{name: point[name] for name in names} for point in series["points"]] == [
            {name: score[name] for name in names} for score in comparable
        ]
        values = [point["value"] for point in series["points"]]
        assert [point["best_so_far"] for point in series["points"]] == [
            max(values[: place + 1]) for place in range(len(values))
        ]
    only = done.get("/runs/router/scores/series", split="heldout", metric="outcome_reward")["series"]
    assert only == known["series"][1:]


def test_a_failed_run_shows_the_full_error(service: Service, tmp_path: Path, example: Example) -> None:
    config = sections(tmp_path, example)
    # Every proposal is longer than the limit, so no turn has a valid one.
    config["gepa"]["max_field_chars"] = 1
    service.run_id(config, allow_unverified=True)
    request = service.wait("router")
    detail = service.get("/runs/router")
    assert request["status"] == detail["run"]["state"] == "failed"
    error = detail["request"]["error"]
    assert error == request["error"]
    assert error["error_code"] == "synth_optimizer_proposer_error"
    assert "characters" in error["message"]
    assert "no valid proposal" in error["message"]
    assert error["hint"]
    assert detail["run"]["failure"]["message"] == error["message"]
    # The usage up to the failure is kept.
    assert service.get("/runs/router/best")["train_score"]["n"] == 12
    assert detail["usage"]["rollouts"]["sent_calls"] == 12
