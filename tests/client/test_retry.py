"""Retries: never of a request that may have been processed, and never before the requested delay."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from support.polling import WAIT_TIMEOUT_SECONDS
from support.stand_in import Answer, StandInService, entry, refusal

from client.clients import with_short_delays
from synth_optimizers.client import Client
from synth_optimizers.client.requests import ADDRESS, Reply, Request, TransportFailure
from synth_optimizers.client.retry import RetryPolicy, may_repeat, retry_after
from synth_optimizers.errors import OptimizerHttpError, SynthOptimizerError

GET = Request("GET", "/x", is_repeatable=True)
POST = Request("POST", "/x")
TAKEN = {"run_id": "recorded", "request": entry(), "auto_started": True, "replayed": False, "warnings": []}
HTTP = "synth_optimizer_http_error"


class ScriptedClient(Client):
    """A client with scripted outcomes, and a clock that advances only in delays."""

    def __init__(self, outcomes: Sequence[Reply | TransportFailure], retries: int = 5) -> None:
        super().__init__(retries=retries)
        self._policy = replace(self._policy, chance=lambda: 1.0, now=lambda: 100.0 + sum(self.pauses))
        self.left = list(outcomes)
        self.pauses: list[float] = []

    def _send(self, request: Request) -> Reply | TransportFailure:  # noqa: ARG002
        return self.left.pop(0)

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


def pauses(
    outcomes: Sequence[Reply | TransportFailure], retries: int = 5, patience: float | None = None
) -> list[float]:
    """Return the delays between requests that have these outcomes."""
    client = ScriptedClient(outcomes, retries)
    client._answer(GET, patience=patience)
    assert client.left == []
    return client.pauses


def busy(status: int = 503, after: str | None = None) -> Reply:
    return Reply(status, {} if after is None else {"retry-after": after}, b"{}")


def test_delays_double_up_to_a_limit() -> None:
    waits = pauses([busy()] * 7 + [Reply(200, {})], retries=7)
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_delays_are_shortened_at_random_but_not_below_half() -> None:
    policy = RetryPolicy(ADDRESS, retries=5)
    assert replace(policy, chance=lambda: 0.0).backoff(2) == 0.5
    assert replace(policy, chance=lambda: 1.0).backoff(2) == 1.0
    assert len({policy.backoff(3) for _ in range(20)}) > 1


def test_the_delay_is_at_least_what_the_service_requests() -> None:
    (wait,) = pauses([busy(429, "7"), Reply(200, {})])
    assert 7.0 <= wait <= 8.0


def test_a_requested_delay_of_minutes_raises_at_once() -> None:
    with pytest.raises(OptimizerHttpError):
        pauses([busy(429, "600")])


def test_a_requested_delay_may_be_a_date() -> None:
    in_an_hour = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    requested_delay = retry_after(busy(503, in_an_hour))
    assert requested_delay is not None
    assert 3590 < requested_delay <= 3600
    assert retry_after(busy(503, "soon")) is None
    assert retry_after(busy(503, "Mon, 01 Jan 2024 00:00:00 GMT")) == 0.0


def test_wait_for_capacity_retries_until_the_deadline() -> None:
    client = ScriptedClient([busy(429, "10")] * 9, retries=0)
    with pytest.raises(OptimizerHttpError):
        client._answer(GET, patience=60.0)
    # A sixth delay would exceed the deadline.
    assert client.pauses == [11.0] * 5


@pytest.mark.parametrize("status", [400, 404, 409, 422, 500, 507])
def test_a_permanent_error_is_not_retried(status: int) -> None:
    assert not may_repeat(GET, Reply(status, {}))


def test_a_request_that_may_have_been_processed_is_not_retried() -> None:
    never_sent, sent = TransportFailure("refused", is_sent=False), TransportFailure("reset", is_sent=True)
    assert may_repeat(POST, never_sent)
    assert not may_repeat(POST, sent)
    assert not may_repeat(POST, Reply(503, {}))
    assert may_repeat(GET, sent)


@pytest.mark.parametrize(
    ("status", "is_retryable", "is_sent_again"),
    [
        (429, True, True),
        (503, True, True),
        (429, False, False),
        (503, False, False),
        (500, True, False),
        (502, True, False),
    ],
)
def test_a_request_that_the_service_rejected_unprocessed_is_retried(
    status: int, is_retryable: bool, is_sent_again: bool
) -> None:
    expected = refusal(status, "workers_busy", HTTP, retryable=is_retryable).body
    assert may_repeat(POST, Reply(status, {}, json.dumps(expected).encode())) is is_sent_again


def test_rejections_of_a_busy_service_do_not_count_as_retries() -> None:
    broken = TransportFailure("reset", is_sent=True)
    full = busy(429, "1")
    outcomes: list[Reply | TransportFailure] = [*[full] * 6, broken, full, broken, Reply(200, {})]
    waits = pauses(outcomes, retries=2, patience=60.0)
    assert [round(wait, 2) for wait in waits] == [1.1] * 6 + [0.25, 1.1, 0.5]


def test_an_interrupted_submission_is_retried_with_the_same_key(client: Client, service: StandInService) -> None:
    service.first("/runs", Answer(drop=True), refusal(503, "draining", HTTP, retry_after=0))
    service.route("POST", "/runs", Answer(201, TAKEN))
    assert client.submit("gepa.toml").run_id == "recorded"
    keys = [seen.headers["idempotency-key"] for seen in service.calls("/runs")]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert len(keys[0]) >= 16


@pytest.mark.parametrize(
    ("outcomes", "is_named"),
    [
        ([Answer(drop=True)] * 6, True),
        ([Answer(502, b"<html>")] * 6, True),
        ([Answer(500, b"oh")], True),
        ([refusal(500, "internal", "synth_optimizer_invariant_error")], True),
        ([refusal(422, "invalid_config", "synth_optimizer_config_error")], False),
        ([refusal(503, "draining", HTTP, retry_after=0)] * 6, False),
    ],
)
def test_a_submission_with_unknown_outcome_names_its_key(
    outcomes: list[Answer], is_named: bool, client: Client, service: StandInService
) -> None:
    service.first("/runs", *outcomes)
    with pytest.raises(SynthOptimizerError) as raised:
        client.submit("gepa.toml")
    [key] = {seen.headers["idempotency-key"] for seen in service.calls("/runs")}
    assert (f"idempotency_key={key!r}" in raised.value.hint) is is_named
    assert len(service.calls("/runs")) == len(outcomes)


@pytest.mark.parametrize("key", ["", "a b", "a\nb", "ü"])
def test_a_key_that_is_invalid_in_a_header_is_refused(key: str, client: Client, service: StandInService) -> None:
    with pytest.raises(ValueError, match="idempotency_key"):
        client.submit("gepa.toml", idempotency_key=key)
    assert service.seen == []


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_with_path_segments_is_refused(name: str, client: Client, service: StandInService) -> None:
    for call in (client.run, client.cancel, lambda name: client.artifact("r", name)):
        with pytest.raises(ValueError, match="is not a valid part"):
            call(name)
    assert service.seen == []


def test_other_interrupted_posts_are_not_retried(client: Client, service: StandInService) -> None:
    service.first("/runs/recorded/cancel", Answer(drop=True))
    with pytest.raises(OptimizerHttpError, match="was closed") as raised:
        client.cancel("recorded")
    assert len(service.calls("/runs/recorded/cancel")) == 1
    assert "may have succeeded" in raised.value.hint


def test_submit_retries_until_the_queue_has_room(client: Client, service: StandInService) -> None:
    service.first("/runs", *[refusal(429, "queue_full", HTTP, retry_after=0.01)] * 9)
    service.route("POST", "/runs", Answer(201, TAKEN))
    assert client.submit(config={"run": {}}, wait_for_capacity=30.0).run_id == "recorded"
    assert len(service.calls("/runs")) == 10


def test_a_queue_that_stays_full_raises_the_error(client: Client, service: StandInService) -> None:
    service.route("POST", "/runs", refusal(429, "queue_full", HTTP, "no room", retry_after=5))
    with pytest.raises(SynthOptimizerError, match="no room") as raised:
        client.submit("gepa.toml", wait_for_capacity=0.2)
    # The requested delay exceeds the client's patience, so the client does not wait.
    assert len(service.calls("/runs")) == 1
    assert (raised.value.status, raised.value.retryable) == (429, True)  # type: ignore[attr-defined]


def test_a_timeout_is_not_retried(service: StandInService) -> None:
    given_up = threading.Event()

    def slow(_seen: object) -> Answer:
        given_up.wait(WAIT_TIMEOUT_SECONDS)
        return Answer(body={})

    service.first("/health", slow)
    with (
        with_short_delays(Client(service.address, timeout=0.1)) as client,
        pytest.raises(OptimizerHttpError, match="in time"),
    ):
        client.health()
    given_up.set()
    assert len(service.calls("/health")) == 1
