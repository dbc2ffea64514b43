"""The best candidate has an ETag, supports conditional requests, and can be long-polled."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.example import Example
from support.gate import Gate, gated_proposer
from support.service import Service

from service.short_runs import config_file, events, expect_error, sections

BEST = "/runs/router/best"


def raw(service: Service, path: str, **headers: str) -> bytes:
    """Return an answer as raw bytes, including the head."""
    parts = urlsplit(service.url)
    lines = [f"GET {path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    with socket.create_connection((str(parts.hostname), parts.port or 80), timeout=30) as wire:
        wire.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        found = b""
        while piece := wire.recv(65536):
            found += piece
    return found


def test_the_best_candidate_matches_the_manifest(done: Service) -> None:
    best = done.get(BEST)
    written = done.get("/runs/router/artifacts/best_candidate.json")
    manifest = done.get("/runs/router/artifacts/manifest.json")
    assert (best["candidate_id"], best["payload"]) == (written["candidate_id"], written["payload"])
    assert (best["train_score"], best["heldout_score"]) == (written["train_score"], written["heldout_score"])
    assert (best["train_gain"], best["heldout_gain"]) == (manifest["train_gain"], manifest["heldout_gain"])
    assert (best["metric"], best["direction"]) == ("outcome_reward", "maximize")
    seed = manifest["scores"]["seed"]["train"]
    assert best["seed_train_score"] == {name: seed[name] for name in best["seed_train_score"]}
    event = events(done, "router")[best["sequence"]]
    assert event["ts"] == best["at"]


def test_a_known_etag_is_answered_with_not_modified(done: Service) -> None:
    reply = done.http.get(BEST)
    tag = reply.headers["etag"]
    for known in (tag, f'"old", {tag}', "*"):
        again = done.http.get(BEST, headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert done.http.get(BEST, headers={"if-none-match": '"old"'}).status_code == 200
    answer = raw(done, BEST, if_none_match=tag)
    assert answer.startswith(b"HTTP/1.1 304 ")
    assert len(answer) < 1024
    answer = raw(done, f"{BEST}?wait_newer_than={reply.json()['sequence']}&timeout_seconds=0")
    assert answer.startswith(b"HTTP/1.1 304 ")
    assert len(answer) < 1024


def test_a_long_poll_of_a_finished_run_returns_at_once(done: Service) -> None:
    best = done.get(BEST)
    # If the service waited, the client would time out first.
    params: dict[str, int] = {"wait_newer_than": best["sequence"], "timeout_seconds": 60}
    reply = done.http.get(BEST, params=params, timeout=30)
    assert (reply.status_code, reply.content) == (304, b"")
    assert done.http.get(BEST, params={"wait_newer_than": best["sequence"] - 1}).json() == best
    assert done.http.get(BEST, params={"wait_newer_than": -1}).json() == best


def test_a_long_poll_returns_as_soon_as_there_is_a_newer_candidate(
    service: Service, example: Example, tmp_path: Path
) -> None:
    with gated_proposer(example) as held, ThreadPoolExecutor(1) as pool:
        config = sections(tmp_path, example, gepa__max_generations=1)
        config["proposer"]["base_url"] = held.url
        service.run_id(config)
        held.wait_for(1)
        seed = service.get(BEST)
        # No newer candidate appears before the proposer answers.
        late = service.http.get(BEST, params={"wait_newer_than": seed["sequence"], "timeout_seconds": 0.5})
        assert (late.status_code, late.content) == (304, b"")
        assert late.headers["etag"] == service.http.get(BEST).headers["etag"]
        params: dict[str, int] = {"wait_newer_than": seed["sequence"], "timeout_seconds": 60}
        waiting = pool.submit(service.http.get, BEST, params=params)
        held.open()
        # The answer arrives long before the requested wait is over.
        newer = waiting.result(30).json()
    assert newer["sequence"] > seed["sequence"]
    assert newer["candidate_id"] != seed["candidate_id"]
    assert newer["train_score"]["mean"] > seed["train_score"]["mean"]
    event = events(service, "router")[newer["sequence"]]
    assert event["type"] in ("candidate.accepted", "generation.completed", "heldout.completed")
    assert service.wait("router")["status"] == "completed"
    # New held-out scores count as newer, also those of the initial candidate.
    final = service.get(BEST)
    assert final["heldout_gain"] is not None
    assert (final == newer) == (final["sequence"] == newer["sequence"])
    heldout = [event for event in events(service, "router") if event["type"] == "heldout.completed"]
    assert final["sequence"] >= heldout[-1]["sequence_number"]


def test_a_run_without_a_measured_candidate_has_no_best(
    service: Service, example: Example, container: Gate, tmp_path: Path
) -> None:
    service.run_id(config_file(tmp_path, example, container__url=container.url))
    container.wait_for(2)
    assert expect_error(service.http.get(BEST), 404, "no_best_candidate")["retryable"]
    reply = service.http.get(BEST, params={"wait_newer_than": -1, "timeout_seconds": 0.2})
    assert (reply.status_code, reply.content) == (304, b"")
    assert "etag" not in reply.headers
    service.ask("POST", "/runs/router/cancel", {})
    service.wait("router")
    # The run is over without a best candidate, so the service does not wait.
    reply = service.http.get(BEST, params={"wait_newer_than": -1, "timeout_seconds": 60})
    assert reply.status_code == 304


@pytest.mark.parametrize(
    "query", ["wait_newer_than=-2", "wait_newer_than=x", "timeout_seconds=-1", "timeout_seconds=61"]
)
def test_an_invalid_wait_is_refused(query: str, done: Service) -> None:
    expect_error(done.http.get(f"{BEST}?{query}"), 422, "invalid_parameter")
