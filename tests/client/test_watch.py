"""A watch yields every event exactly once, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Generator, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stand_in import (
    END,
    RUN_ID,
    Answer,
    Handler,
    ReceivedRequest,
    StandInService,
    recorded,
    refusal,
    sse,
    streamed,
)

from client.clients import with_short_delays
from synth_optimizers.client import AsyncClient, Client
from synth_optimizers.client.requests import Reply, Request
from synth_optimizers.errors import OptimizerHttpError, SynthOptimizerError

PATH = f"/runs/{RUN_ID}/events"
RECORDED = recorded()


def sequence_numbers(client: Client, after: int = -1) -> list[int]:
    return [event.sequence_number for event in client.watch(RUN_ID, after=after)]


def async_sequence_numbers(address: str, after: int = -1) -> list[int]:
    async def watch() -> list[int]:
        async with with_short_delays(AsyncClient(address)) as client:
            return [event.sequence_number async for event in client.watch(RUN_ID, after=after)]

    return asyncio.run(watch())


def test_every_event_is_yielded_once_and_in_order(client: Client, service: StandInService) -> None:
    watched = list(client.watch(RUN_ID))
    assert [event.to_dict() | {"version": 1} for event in watched] == service.events
    (seen,) = service.calls(PATH)
    assert seen.headers["accept"] == "text/event-stream"
    assert "last-event-id" not in seen.headers


def test_a_watch_can_start_after_a_sequence_number(client: Client, service: StandInService) -> None:
    assert sequence_numbers(client, after=99) == list(range(100, len(service.events)))


@pytest.mark.parametrize("both", [sequence_numbers, async_sequence_numbers])
def test_a_broken_stream_resumes_after_the_last_event(both: object, client: Client, service: StandInService) -> None:
    def cut(count: int, tail: bytes = b"") -> Handler:
        def answer(seen: ReceivedRequest) -> Answer:
            after = int(seen.headers.get("last-event-id", "-1"))
            pieces = list(sse(service.events[after + 1 : after + 1 + count]))
            return streamed([b": hello\n\n", *pieces, tail])

        return answer

    half = next(sse(service.events[7:8]))[:40]
    service.first(PATH, cut(7, half), Answer(drop=True), refusal(503, "draining", "synth_optimizer_http_error"))
    service.first(PATH, cut(1), cut(50), cut(0))
    found = sequence_numbers(client) if both is sequence_numbers else async_sequence_numbers(service.address)
    assert found == list(range(len(service.events)))
    resumed = [seen.headers.get("last-event-id") for seen in service.calls(PATH)]
    assert resumed == [None, "6", "6", "6", "7", "57", "57"]


def test_a_dropped_reader_reconnects(client: Client, service: StandInService) -> None:
    dropped = b'event: dropped\ndata: {"reason":"too slow"}\n\n'
    service.first(PATH, streamed([*sse(service.events[:10]), dropped]))
    assert sequence_numbers(client) == list(range(len(service.events)))
    assert [seen.headers.get("last-event-id") for seen in service.calls(PATH)] == [None, "9"]


def test_duplicate_events_are_yielded_once(client: Client, service: StandInService) -> None:
    service.first(PATH, streamed(sse(service.events[:10])), streamed([*sse(service.events[3:]), END]))
    assert sequence_numbers(client) == list(range(len(service.events)))


def test_a_stream_with_a_gap_is_opened_again(client: Client, service: StandInService) -> None:
    service.first(PATH, streamed([*sse(service.events[:5]), *sse(service.events[8:20])]))
    assert sequence_numbers(client) == list(range(len(service.events)))
    assert [seen.headers.get("last-event-id") for seen in service.calls(PATH)] == [None, "4"]


def test_a_stream_that_always_has_a_gap_raises(client: Client, service: StandInService) -> None:
    holed = list(sse([*service.events[:5], *service.events[8:]]))
    service.route("GET", PATH, lambda _seen: streamed(holed))
    with pytest.raises(OptimizerHttpError, match="event 8 followed event 4"):
        sequence_numbers(client)


def test_a_watch_after_the_last_event_of_a_finished_run_ends_at_once(client: Client, service: StandInService) -> None:
    assert sequence_numbers(client, after=len(service.events) - 1) == []


def test_a_service_that_stays_unreachable_raises(client: Client, service: StandInService) -> None:
    service.route("GET", PATH, lambda _seen: streamed([]))
    with pytest.raises(OptimizerHttpError, match="ended before the run"):
        sequence_numbers(client)
    assert len(service.calls(PATH)) == 6


def test_a_missing_run_is_not_retried(client: Client, service: StandInService) -> None:
    service.route("GET", PATH, refusal(404, "run_not_found", "synth_optimizer_config_error", "no run"))
    with pytest.raises(SynthOptimizerError, match="no run"):
        sequence_numbers(client)
    assert len(service.seen) == 1


def test_an_answer_that_is_not_a_stream_raises(client: Client, service: StandInService) -> None:
    service.route("GET", PATH, Answer(200, b"<html>", {"content-type": "text/html"}))
    with pytest.raises(OptimizerHttpError, match="instead of an event stream"):
        sequence_numbers(client)


def test_an_abandoned_watch_closes_its_connection(client: Client, service: StandInService) -> None:
    let_go = []

    def endless() -> Iterator[bytes]:
        try:
            for number in itertools.count():
                event = {**service.events[0], "sequence_number": number, "message": "x" * 1000}
                yield f"data: {json.dumps(event)}\n\n".encode()
        finally:
            let_go.append(True)

    service.first(PATH, streamed(endless()))
    watched = client.watch(RUN_ID)
    assert next(watched).sequence_number == 0
    watched.close()
    service.route("GET", "/ready", {"status": "ready", "database": "open", "workers": 1})
    assert client.ready().workers == 1


class UnstableClient(Client):
    """Streams that start a little before or after the requested event, and are cut anywhere, even within a line."""

    def __init__(self, plan: list[tuple[int, int, int]]) -> None:
        super().__init__(retries=100)
        self.expected = [{**event, "fields": {}} for event in RECORDED[:20]]
        self.plan = iter(plan)
        self.found: list[int] = []

    def _sleep(self, seconds: float) -> None:
        """Return at once."""

    @contextlib.contextmanager
    def _open_stream(self, request: Request) -> Generator[tuple[Reply, Iterator[bytes]]]:
        last = int(request.headers.get("last-event-id", "-1"))
        assert last == (self.found[-1] if self.found else -1)
        shift, count, cut = next(self.plan, (0, 20, 0))
        start = max(0, last + 1 + shift)
        whole = b"".join(sse(self.expected[start : start + count]))
        body = whole + END if count == 20 else whole[: len(whole) - cut]
        yield Reply(200, {"content-type": "text/event-stream"}), iter([body])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-4, 3), st.integers(0, 9), st.integers(0, 60)), max_size=12))
def test_an_unstable_connection_yields_every_event_once(plan: list[tuple[int, int, int]]) -> None:
    client = UnstableClient(plan)
    for event in client.watch(RUN_ID):
        client.found.append(event.sequence_number)
    assert client.found == list(range(20))


def test_a_watch_may_have_more_retries_than_the_client(client: Client, service: StandInService) -> None:
    service.first(PATH, *[streamed([])] * 8)
    assert [event.sequence_number for event in client.watch(RUN_ID, retries=8)] == list(range(len(service.events)))


def test_stored_events_are_read_in_pages(client: Client, service: StandInService) -> None:
    assert [event.sequence_number for event in client.events(RUN_ID, page_size=50)] == list(range(len(service.events)))
    assert [seen.params for seen in service.calls(PATH)] == [
        {"after": "-1", "limit": "50"},
        {"after": "49", "limit": "50"},
        {"after": "99", "limit": "50"},
    ]
    assert [event.sequence_number for event in client.events(RUN_ID, after=120)] == [121, 122]
