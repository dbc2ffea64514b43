"""Events are streamed exactly once and in order, whatever happens to the connection, and no reader delays a run."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from support.example import Example
from support.polling import wait_until
from support.service import Service

from service.short_runs import config_file, events, expect_error, feed, has_event, sections

STREAM = {"accept": "text/event-stream"}


@dataclass(frozen=True)
class Frame:
    """One server-sent event: its id, name and data."""

    id: int | None
    name: str
    data: Any


def frames(text: bytes) -> list[Frame]:
    """Parse the complete events, as a browser does."""
    found = []
    for block in text.decode().split("\n\n")[:-1]:
        fields = [line.partition(": ") for line in block.split("\n") if not line.startswith(":")]
        known = {name: value for name, _, value in fields}
        if "data" in known:
            number = int(known["id"]) if "id" in known else None
            found.append(Frame(number, known.get("event", "message"), json.loads(known["data"])))
    return found


@contextlib.contextmanager
def open_stream(service: Service, run_id: str = "router", last: int | None = None) -> Iterator[httpx.Response]:
    """Open a stream after the last known event."""
    headers = STREAM if last is None else {**STREAM, "last-event-id": str(last)}
    with httpx.stream("GET", f"{service.url}/runs/{run_id}/events", headers=headers, timeout=30) as stream:
        yield stream


def read_stream(service: Service, run_id: str = "router", last: int | None = None) -> list[Frame]:
    """Read a stream to its end."""
    with open_stream(service, run_id, last) as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"] == "text/event-stream"
        return frames(stream.read())


def check_whole(found: list[Frame], service: Service, run_id: str = "router") -> None:
    """Check that the frames are the whole log in order, followed by the end marker."""
    *told, end = found
    assert (end.name, end.id) == ("end", None)
    assert end.data == {"status": service.request(run_id)["status"]}
    stored = events(service, run_id)
    assert [frame.data for frame in told] == stored
    assert [frame.id for frame in told] == list(range(len(stored)))


def test_a_run_is_streamed_from_its_first_event_to_its_end(service: Service, slow: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, slow))
    found = read_stream(service)
    check_whole(found, service)
    assert found[-2].data["type"] == "gepa.run.finished"
    # The same lines as in the file.
    lines = service.http.get("/runs/router/artifacts/events.jsonl").text.splitlines()
    assert [frame.data for frame in found[:-1]] == [json.loads(line) for line in lines]


def test_events_are_streamed_during_the_run(service: Service, slow: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, slow))
    with open_stream(service) as stream:
        lines = stream.iter_lines()
        assert any('"type":"rollout.finished"' in line for line in lines)
        assert service.request("router")["status"] == "running"
    # A disconnect of the reader does not affect the run.
    assert service.wait("router")["status"] == "completed"


def test_a_stream_can_be_opened_before_the_run_starts(service: Service, example: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, example), auto_start=False)
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(read_stream, service)
        wait_until("the reader", lambda: "event_streams 1" in service.http.get("/metrics").text)
        assert service.ask("POST", "/worker/run-next", {}).status_code == 200
        check_whole(watching.result(30), service)


def test_a_cut_stream_resumes_without_gap_or_duplicate(service: Service, slow: Example, tmp_path: Path) -> None:
    chance = random.Random(7)  # noqa: S311 (random cut points, not secrets)
    service.run_id(config_file(tmp_path, slow))
    found: list[Frame] = []
    cuts = 0
    while not found or found[-1].name != "end":
        last = found[-1].id if found else None
        wanted = chance.randrange(1, 4000)
        text = b""
        with open_stream(service, last=last) as stream:
            assert stream.status_code == 200
            for piece in stream.iter_bytes():
                text += piece
                if len(text) >= wanted:
                    # The rest of a chunk may have been cut off as well.
                    text = text[:wanted]
                    break
        found += frames(text)
        cuts += 1
    assert cuts > 20
    check_whole(found, service)


def test_a_reader_with_every_event_gets_the_end_marker(done: Service) -> None:
    last = len(events(done, "router")) - 1
    for seen in (last, last + 100):
        reply = done.http.get("/runs/router/events", headers={**STREAM, "last-event-id": str(seen)})
        assert (reply.status_code, reply.content) == (204, b"")
    assert done.http.get(f"/runs/router/events?after={last}", headers=STREAM).status_code == 204
    # One event is left, followed by the end marker.
    rest = read_stream(done, last=last - 1)
    assert [(frame.id, frame.name) for frame in rest] == [(last, "message"), (None, "end")]


def test_a_finished_run_is_streamed_like_an_active_one(done: Service) -> None:
    check_whole(read_stream(done), done)
    check_whole(read_stream(done, "other"), done, "other")
    assert [frame.name for frame in read_stream(done, "c0")] == ["end"]
    middle = read_stream(done, last=99)
    assert [frame.id for frame in middle[:-1]] == list(range(100, len(events(done, "router"))))


@pytest.mark.parametrize("last", ["x", "-2", "1.5", "", "99999999999999999999"])
def test_an_invalid_last_event_id_is_refused(last: str, done: Service) -> None:
    reply = done.http.get("/runs/router/events", headers={**STREAM, "last-event-id": last})
    expect_error(reply, 422, "invalid_parameter")


def test_last_event_id_takes_precedence_over_the_query(done: Service) -> None:
    with httpx.stream(
        "GET", f"{done.url}/runs/router/events?after=3", headers={**STREAM, "last-event-id": "50"}
    ) as stream:
        assert frames(stream.read())[0].id == 51


def test_two_readers_get_the_same_events(service: Service, slow: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, slow))
    with ThreadPoolExecutor(3) as pool:
        early = [pool.submit(read_stream, service) for _ in range(2)]
        wait_until("a generation", has_event(service, "router", "generation.started"))
        late = pool.submit(read_stream, service)
        found = [watching.result(30) for watching in (*early, late)]
    assert found[0] == found[1] == found[2]
    check_whole(found[0], service)


def test_a_reader_that_never_reads_does_not_delay_the_run(
    service: Service, slow: Example, example: Example, tmp_path: Path
) -> None:
    service.run_id(config_file(tmp_path, slow))
    parts = urlsplit(service.url)
    with contextlib.ExitStack() as sockets:
        for _ in range(20):
            wire = sockets.enter_context(socket.socket())
            # The socket buffer of the reader is small, so that the service notices that it does not read.
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            wire.connect((str(parts.hostname), parts.port or 80))
            lines = ["GET /runs/router/events HTTP/1.1", f"Host: {parts.netloc}", "Accept: text/event-stream"]
            wire.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        wait_until("the readers", lambda: "event_streams 20" in service.http.get("/metrics").text)
        reading = read_stream(service)
        assert service.wait("router")["status"] == "completed"
        check_whole(reading, service)
    service.run_id(sections(tmp_path, example, run__run_id="undisturbed"))
    assert service.wait("undisturbed")["status"] == "completed"
    assert feed(service, "router") == feed(service, "undisturbed")


def test_events_can_be_read_in_pages(done: Service) -> None:
    whole = events(done, "router")
    found: list[dict[str, Any]] = []
    after = -1
    while True:
        page = done.get("/runs/router/events", after=after, limit=30)
        found += page["items"]
        after = page["next_after"]
        assert (page["is_terminal"], page["last_sequence"]) == (True, len(whole) - 1)
        if after == page["last_sequence"]:
            break
    assert found == whole
    assert done.get("/runs/router/events", after=after)["items"] == []
    assert done.get("/runs/c0/events") == {"items": [], "next_after": -1, "last_sequence": None, "is_terminal": True}
