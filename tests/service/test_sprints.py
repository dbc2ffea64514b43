"""A search in sprints, the default, as the service shows it: the plan, the events, the candidates, the claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.example import Example, example_config
from support.service import Service

from service.short_runs import events, paged
from synth_optimizers.client import Client


def test_a_search_in_sprints_runs_from_submission_to_claim(service: Service, example: Example, tmp_path: Path) -> None:
    example_config(tmp_path, example, run__run_id="sprints", cache__mode="off")
    report = service.ask("POST", "/runs/preflight", {"config_path": "gepa.toml"}).json()
    assert report["ok"], report
    reason = "checking the sum of several changes needs fewer rollouts than evaluating each"
    assert (report["plan"]["search"], report["plan"]["search_reason"]) == ("sprint", reason)

    service.run_id(Path("gepa.toml"))
    service.wait("sprints", "completed")
    found = events(service, "sprints")

    def fields_of(kind: str) -> list[dict[str, Any]]:
        return [event["fields"] for event in found if event["type"] == kind]

    assert fields_of("search.chosen") == [{"search": "sprint", "reason": reason}]
    (noise,) = fields_of("noise.measured")
    assert (noise["pairs"], noise["is_noisy"]) == (16, False)
    checks = fields_of("check.decided")
    adopted = [check["head_id"] for check in checks if check["verdict"] == "adopted"]
    assert adopted
    assert all(check["probability"] >= 0.975 for check in checks if check["verdict"] == "adopted")
    assert adopted[-1] == service.get("/runs/sprints/best")["candidate_id"]

    candidates = [known for page in paged(service, "/runs/sprints/candidates") for known in page]
    statuses = {known["candidate_id"]: known["status"] for known in candidates}
    assert {name for name, status in statuses.items() if status == "accepted"} == {
        candidates[0]["candidate_id"],
        *adopted,
    }
    assert "superseded" in statuses.values()

    manifest = service.get("/runs/sprints/artifacts/result_manifest.json")
    assert manifest["claim"]["verdict"] == "better"
    assert manifest["claim"]["candidate_id"] == adopted[-1]
    rollouts = [entry for page in paged(service, "/runs/sprints/rollouts", limit=200) for entry in page]
    purposes = manifest["rollouts_by_purpose"]
    assert sum(purposes.values()) == len(rollouts) <= 600
    for stage in ("check", "repeat", "heldout"):
        assert purposes[stage] == sum(entry["evaluation_stage"] == stage for entry in rollouts) > 0
    with Client(service.url) as client:
        best, run = client.best("sprints"), client.run("sprints").run
    assert run is not None
    assert (run.search, run.search_reason) == ("sprint", reason)
    assert best is not None
    assert best.candidate_id == adopted[-1]


@pytest.mark.parametrize(("setting", "search"), [("gepa.search=reference", "reference"), ("run.seed=8", "sprint")])
def test_the_plan_of_a_submission_names_its_search(
    setting: str, search: str, service: Service, example: Example, tmp_path: Path
) -> None:
    example_config(tmp_path, example, run__run_id="planned")
    body = {"config_path": "gepa.toml", "overrides": [setting]}
    assert service.ask("POST", "/runs/preflight", body).json()["plan"]["search"] == search
