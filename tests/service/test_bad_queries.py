"""Invalid queries about runs are refused, each with its own code."""

from __future__ import annotations

import pytest
from support.service import Service

from service.short_runs import expect_error


@pytest.mark.parametrize(
    "query",
    ["cursor=zz", "cursor=c-5", "cursor=", "limit=0", "limit=201", "limit=-1", "limit=x", "state=gone", "stat=failed"],
)
def test_an_invalid_query_of_the_run_list_is_refused(query: str, done: Service) -> None:
    reply = done.http.get(f"/runs?{query}")
    assert reply.status_code == 422, reply.text
    assert reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("candidates?cursor=zz", "invalid_cursor"),
        ("candidates?limit=0", "invalid_limit"),
        ("candidates?status=great", "invalid_filter"),
        ("candidates?generation=x", "invalid_parameter"),
        ("rollouts?cursor=-1", "invalid_cursor"),
        ("rollouts?limit=201", "invalid_limit"),
        ("rollouts?stage=x", "invalid_filter"),
        ("rollouts?split=test", "invalid_filter"),
        ("rollouts/0?include=all", "invalid_parameter"),
        ("scores?since=-2", "invalid_sequence"),
        ("scores?limit=1001", "invalid_limit"),
        ("scores/series?metric=x", "invalid_filter"),
        ("events?after=-2", "invalid_sequence"),
        ("events?limit=0", "invalid_limit"),
        ("rows?split=test", "invalid_filter"),
        ("rows?order=best", "invalid_filter"),
        ("rows?candidates=nobody", "invalid_filter"),
        ("rows?offset=-1", "invalid_offset"),
        ("rows?candidate_limit=201", "invalid_limit"),
        ("turns?cursor=x", "invalid_cursor"),
        ("compare/router?stauts=1", "invalid_parameter"),
        ("best?timeout_seconds=61", "invalid_parameter"),
    ],
)
def test_an_invalid_query_is_refused(path: str, code: str, done: Service) -> None:
    expect_error(done.http.get(f"/runs/router/{path}"), 422, code)


@pytest.mark.parametrize(
    "path", ["candidates", "rollouts", "scores", "scores/series", "events", "best", "rows", "turns"]
)
def test_a_misspelt_filter_is_refused(path: str, done: Service) -> None:
    """Otherwise the client would take the unfiltered list for the filtered one."""
    expect_error(done.http.get(f"/runs/router/{path}?stauts=accepted"), 422, "invalid_parameter")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("router/candidates/missing", "candidate_not_found"),
        ("router/rollouts/99999", "rollout_not_found"),
        ("router/rollouts/r-0", "rollout_not_found"),
        ("router/artifacts/nothing", "artifact_not_found"),
        ("c0/candidates/missing", "candidate_not_found"),
        ("c0/rollouts/0", "rollout_not_found"),
        ("router/turns/99", "turn_not_found"),
        ("router/turns/x", "turn_not_found"),
        ("router/compare/missing", "run_not_found"),
        ("router/compare/router?candidate_id=missing", "candidate_not_found"),
        ("c0/turns/1", "turn_not_found"),
        ("c0/compare/router", "run_not_started"),
        ("c0/best", "no_best_candidate"),
        ("missing", "run_not_found"),
        ("missing/candidates", "run_not_found"),
        ("missing/events", "run_not_found"),
        ("missing/artifacts/events.jsonl", "run_not_found"),
    ],
)
def test_each_missing_resource_has_its_own_code(path: str, code: str, done: Service) -> None:
    expect_error(done.http.get(f"/runs/{path}"), 404, code)
