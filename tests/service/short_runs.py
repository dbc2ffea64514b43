"""Configurations of short runs for the service, and helpers to compare two runs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from support.example import Example, example_config
from support.service import Service

SETTINGS: dict[str, object] = {
    "run__run_id": "router",
    "dataset__train_seeds": list(range(12)),
    "dataset__heldout_seeds": list(range(4)),
    "gepa__search": "reference",
    "gepa__max_generations": 3,
    "gepa__minibatch_size": 4,
    "gepa__max_total_rollouts": 200,
    "gepa__proposals_per_generation": 2,
    "gepa__score_threshold_value": None,
    # No run uses a cache, so that the container's log shows every sent call.
    "cache__mode": "off",
}
"""The settings of a run of three generations: 92 rollouts, three proposer turns, seven candidates."""

TINY: dict[str, object] = {
    "dataset__train_seeds": list(range(4)),
    "dataset__heldout_seeds": [0, 1],
    "gepa__max_generations": 1,
}
"""The settings of a run that completes almost at once."""

LONG: dict[str, object] = {
    "dataset__train_seeds": list(range(48)),
    "gepa__max_generations": 100,
    "gepa__max_total_rollouts": 5000,
}
"""The settings of a run that continues until a test ends it."""


def config_file(place: Path, example: Example, **changes: object) -> Path:
    """Write the configuration of a short run and return its path relative to the config root."""
    example_config(place, example, **{**SETTINGS, **changes})
    return Path("gepa.toml")


def sections(place: Path, example: Example, **changes: object) -> dict[str, Any]:
    """Return the same configuration as sections."""
    return tomllib.loads((place / config_file(place, example, **changes)).read_text(encoding="utf-8"))


def expect_error(reply: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Return the error of an answer, and check its status, code and shape."""
    assert reply.status_code == status, reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert error["code"] == code, error
    assert error["message"]
    assert error["hint"]
    assert error["error_code"].startswith("synth_optimizer"), error
    assert error["request_id"] == reply.headers["x-request-id"]
    assert {"detail", "retryable", "field_errors", "state"} <= set(error)
    return error


def feed(service: Service, run_id: str) -> bytes:
    """Return the normalized events of a finished run."""
    reply = service.http.get(f"/runs/{run_id}/artifacts/events.normalized.jsonl")
    assert reply.status_code == 200, reply.text
    return reply.content


def events(service: Service, run_id: str) -> list[dict[str, Any]]:
    """Return the events of a run so far."""
    found: list[dict[str, Any]] = []
    after = -1
    while items := service.get(f"/runs/{run_id}/events", after=after, limit=1000)["items"]:
        found += items
        after = items[-1]["sequence_number"]
    return found


def has_event(service: Service, run_id: str, kind: str, count: int = 1) -> Callable[[], bool]:
    """Return whether a run has at least this many events of a type."""
    return lambda: sum(event["type"] == kind for event in events(service, run_id)) >= count


def history(service: Service, run_id: str) -> list[str]:
    """Return the triggers of the status changes of a run's request."""
    return [step["trigger"] for step in service.get(f"/runs/{run_id}")["history"]]


def paged(service: Service, path: str, **params: str | int) -> list[list[dict[str, Any]]]:
    """Return the items of every page of a list."""
    pages: list[list[dict[str, Any]]] = []
    cursor: dict[str, str] = {}
    while True:
        page = service.get(path, **params, **cursor)
        pages.append(page["items"])
        if page["next_cursor"] is None:
            return pages
        cursor = {"cursor": page["next_cursor"]}
