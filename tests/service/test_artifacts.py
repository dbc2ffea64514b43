"""Artifacts are listed with digests and served by name, and deleted with their runs."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from cli.commands import run_cli
from support.example import Example
from support.polling import wait_until
from support.service import Service

from service.short_runs import LONG, TINY, config_file, expect_error, has_event, sections

NAMES = {
    *("result_manifest.json", "best_candidate.json", "candidate_registry.json", "frontier.json", "cache_profile.json"),
    *("report.html", "score_chart.svg", "lineage.svg", "events.jsonl", "events.normalized.jsonl", "workspace.sqlite"),
}


def test_every_listed_digest_matches_the_content(done: Service) -> None:
    listed = done.get("/runs/router/artifacts")["items"]
    turns = [known["name"] for known in listed if known["kind"] == "proposer_transcript"]
    assert len(turns) == 3
    assert {known["name"] for known in listed} == {*NAMES, *turns}
    for known in listed:
        reply = done.http.get(f"/runs/router/artifacts/{known['name']}")
        assert reply.status_code == 200
        assert len(reply.content) == known["bytes"] == int(reply.headers["content-length"])
        assert reply.headers["content-type"] == known["media_type"]
        if known["sha256"] is not None:
            assert hashlib.sha256(reply.content).hexdigest() == known["sha256"]
            assert reply.headers["etag"] == f'"{known["sha256"]}"'
            again = done.http.get(
                f"/runs/router/artifacts/{known['name']}", headers={"if-none-match": reply.headers["etag"]}
            )
            assert (again.status_code, again.content) == (304, b"")


def test_every_artifact_of_a_finished_run_has_a_digest(done: Service) -> None:
    listed = done.get("/runs/router/artifacts")["items"]
    assert {known["name"] for known in listed if known["sha256"]} == {known["name"] for known in listed} > NAMES


def test_artifacts_have_the_published_names(done: Service) -> None:
    def content(name: str) -> bytes:
        return done.http.get(f"/runs/router/artifacts/{name}").content

    assert json.loads(content("manifest.json"))["run_id"] == "router"
    assert content("manifest.json") == content("result_manifest.json")
    assert content("event_feed.jsonl") == content("events.jsonl")


@pytest.mark.parametrize(
    "name", ["run.lock", "workspace.sqlite-wal", "..%2frouter%2fevents.jsonl", "%2e%2e%2fgepa.toml", "events.jsonl%00"]
)
def test_unknown_artifact_names_are_not_found(name: str, done: Service) -> None:
    expect_error(done.http.get(f"/runs/router/artifacts/{name}"), 404, "artifact_not_found")


def test_a_downloaded_workspace_is_complete(done: Service, tmp_path: Path) -> None:
    copy = tmp_path / "workspace.sqlite"
    copy.write_bytes(done.http.get("/runs/router/artifacts/workspace.sqlite").content)
    with closing(sqlite3.connect(copy)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT count(*) FROM candidates").fetchone() == (7,)


def test_artifacts_of_an_active_run_can_be_read(service: Service, slow: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, slow, **LONG))
    wait_until("a rollout", has_event(service, "router", "rollout.finished", 3))
    listed = {known["name"]: known for known in service.get("/runs/router/artifacts")["items"]}
    assert listed["events.jsonl"]["sha256"] is None
    # The live database is not a listed file.
    assert "workspace.sqlite" not in listed
    reply = service.http.get("/runs/router/artifacts/events.jsonl")
    lines = reply.content.split(b"\n")
    assert [json.loads(line)["sequence_number"] for line in lines[:-1]] == list(range(len(lines) - 1))
    assert "etag" not in reply.headers
    expect_error(service.http.get("/runs/router/artifacts/result_manifest.json"), 404, "artifact_not_found")
    service.ask("POST", "/runs/router/cancel", {})
    service.wait("router")


def test_only_a_finished_run_is_deleted(service: Service, slow: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, slow), auto_start=False)
    assert expect_error(service.ask("DELETE", "/runs/router"), 409, "not_terminal")["state"] == "queued"
    service.ask("POST", "/runs/router/pause", {})
    assert expect_error(service.ask("DELETE", "/runs/router"), 409, "not_terminal")["state"] == "paused"
    service.ask("POST", "/runs/router/cancel", {})
    assert service.ask("DELETE", "/runs/router").status_code == 204
    service.run_id(config_file(tmp_path, slow, **LONG))
    wait_until("a rollout", has_event(service, "router", "rollout.finished"))
    assert expect_error(service.ask("DELETE", "/runs/router"), 409, "not_terminal")["state"] == "running"
    service.ask("POST", "/runs/router/cancel", {})
    service.wait("router")
    assert (tmp_path / "runs" / "router" / "workspace.sqlite").exists()
    reply = service.ask("DELETE", "/runs/router")
    assert (reply.status_code, reply.content) == (204, b"")
    assert not (tmp_path / "runs" / "router").exists()
    expect_error(service.http.get("/runs/router"), 404, "run_not_found")
    expect_error(service.http.get("/runs/router/candidates"), 404, "run_not_found")
    # Deleting again gives the same answer.
    assert service.ask("DELETE", "/runs/router").status_code == 204


def test_prune_lists_runs_before_deleting_them(service: Service, example: Example, tmp_path: Path) -> None:
    def prune(**body: object) -> list[str]:
        reply = service.ask("POST", "/workspace/prune", body)
        assert reply.status_code == 200, reply.text
        known = reply.json()
        assert known["dry_run"] == body.get("dry_run", True)
        return sorted(known["run_ids"])

    for name in ("old", "new"):
        service.run_id(sections(tmp_path, example, run__run_id=name, **TINY))
        service.wait(name)
    for name in ("gone", "waits"):
        service.run_id(sections(tmp_path, example, run__run_id=name, **TINY), auto_start=False)
    service.ask("POST", "/runs/gone/cancel", {})
    # Without an explicit `dry_run: false`, nothing is deleted.
    assert prune() == prune(dry_run=True) == ["gone", "new", "old"]
    assert prune(status=["cancelled"]) == ["gone"]
    assert prune(status=["completed", "failed"]) == ["new", "old"]
    moment = service.request("new")["finished_at"]
    assert prune(older_than=moment) == ["old"]
    assert prune(older_than="2020-01-01T00:00:00Z") == []
    assert len(service.get("/runs")["items"]) == 4
    assert prune(older_than=moment, status=["completed"], dry_run=False) == ["old"]
    assert not (tmp_path / "runs" / "old").exists()
    assert (tmp_path / "runs" / "new" / "result_manifest.json").exists()
    expect_error(service.http.get("/runs/old"), 404, "run_not_found")
    assert prune(dry_run=False) == ["gone", "new"]
    assert [entry["run_id"] for entry in service.get("/runs")["items"]] == ["waits"]
    for body in ({"older_than": "yesterday"}, {"status": ["gone"]}, {"dryrun": False}):
        expect_error(service.ask("POST", "/workspace/prune", body), 422, "invalid_request")
    expect_error(service.ask("POST", "/workspace/prune", {"status": ["queued"]}), 409, "not_terminal")


def test_a_run_with_concurrent_readers_is_deleted_for_good(service: Service, example: Example, tmp_path: Path) -> None:
    config = config_file(tmp_path, example, **TINY)
    for _ in range(3):
        service.run_id(config)
        first = service.wait("router")
        assert first["status"] == "completed"
        begun = service.get("/runs/router/events", limit=1)["items"][0]["ts"]
        assert begun >= first["submitted_at"]
        with ThreadPoolExecutor(4) as pool:
            is_gone, seen = threading.Event(), Counter[int]()

            def read(number: int) -> None:
                with httpx.Client(base_url=service.url, timeout=30, trust_env=False) as http:
                    while not is_gone.is_set():  # noqa: B023 (used within the iteration)
                        http.get("/runs/router/events")
                        seen[number] += 1  # noqa: B023 (used within the iteration)

            readers = [pool.submit(read, number) for number in range(4)]
            try:
                wait_until("readers", lambda: len(seen) == len(readers))  # noqa: B023 (used within the iteration)
                reply = service.ask("DELETE", "/runs/router")
                assert reply.status_code == 204, reply.text
            finally:
                is_gone.set()
            for reader in readers:
                reader.result()
        assert [path.name for path in (tmp_path / "runs").iterdir() if path.name.lstrip(".").startswith("router")] == []


def test_a_directory_that_the_service_did_not_create_is_kept(
    service: Service, example: Example, tmp_path: Path
) -> None:
    config = config_file(tmp_path, example, **TINY)
    assert run_cli("gepa", "run", "--config", "gepa.toml", "--quiet", cwd=tmp_path).code == 0
    service.run_id(config, auto_start=False)
    assert service.ask("POST", "/runs/router/cancel", {}).status_code == 202
    pruned = service.ask("POST", "/workspace/prune", {"dry_run": False})
    assert pruned.json()["run_ids"] == ["router"]
    assert (tmp_path / "runs" / "router" / "result_manifest.json").is_file()


def test_a_directory_with_unrelated_files_is_not_deleted(service: Service, example: Example, tmp_path: Path) -> None:
    note = tmp_path / "runs" / "router" / "note.txt"
    note.parent.mkdir(parents=True)
    note.write_text("mine")
    config = config_file(tmp_path, example, **TINY)
    error = expect_error(service.submit(config), 422, "preflight_failed")
    assert [found["field"] for found in error["field_errors"]] == ["run.run_id"]
    ended = run_cli("gepa", "run", "--config", "gepa.toml", cwd=tmp_path)
    assert ended.code == 2
    assert "is not a run directory" in ended.stderr
    assert [path.name for path in note.parent.iterdir()] == ["note.txt"]
