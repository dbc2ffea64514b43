"""A stand-in for the service: it answers over HTTP like the service, or with faults that a test configures."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from synth_optimizers.cli.local import ARTIFACTS

RECORDED = Path(__file__).parents[1] / "cli" / "recorded" / "events.jsonl"
RUN_ID = "recorded"


@dataclass(frozen=True)
class ReceivedRequest:
    """An HTTP request as the server received it."""

    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    """An answer; a stream is sent in chunks and then cut off."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    stream: Iterable[bytes] | None = None
    drop: bool = False
    """Close the connection without an answer."""


def refusal(
    status: int, code: str, error_code: str, message: str = "no", *, retry_after: float | None = None, **more: object
) -> Answer:
    """Return an error answer of the service."""
    known = {
        "code": code,
        "error_code": error_code,
        "message": message,
        "detail": None,
        "hint": "Do something else.",
        "retryable": status in (429, 503),
        "field_errors": [],
        "state": None,
        "request_id": "req_1",
        **more,
    }
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return Answer(status, {"error": known}, headers)


def entry(run_id: str = RUN_ID, status: str = "completed", **more: object) -> dict[str, Any]:
    """Return a run request as the service shows it."""
    names = ("leased_at", "lease_expires_at", "pause_expires_at", "lease_id", "worker_id", "idempotency_key", "usage")
    files = ("run_workspace_db_path", "result_manifest_path", "best_candidate_id", "cost_usd", "result", "error")
    return {
        **dict.fromkeys((*names, *files, "started_at", "finished_at", "config_path", "waiting")),
        "request_id": "runreq_" + hashlib.md5(run_id.encode(), usedforsecurity=False).hexdigest(),
        "run_id": run_id,
        "status": status,
        "is_terminal": status in ("completed", "failed", "cancelled"),
        "priority": 0,
        "auto_start": True,
        "manual_step": False,
        "config_digest": "0" * 64,
        "container_url": "http://127.0.0.1:8765",
        "cache_mode": "readwrite",
        "cache_namespace": "router",
        "output_dir": "runs",
        "run_dir": f"runs/{run_id}",
        "submitted_at": "2026-11-16T12:00:00.000Z",
        "updated_at": "2026-11-16T12:00:00.000Z",
        "fencing_token": 0,
        "attempts": 0,
        "recoveries": 0,
        **more,
    }


def detail(request: dict[str, Any], run: dict[str, Any] | None = None, **more: object) -> dict[str, Any]:
    """Return the details of one run as the service shows them."""
    step = {"sequence": 0, "at": "2026-11-16T12:00:00.000Z", "from": None, "to": "queued", "trigger": "submit"}
    step["request_id"] = request["request_id"]
    return {
        "request": request,
        "run": run,
        "models": {"policy": {"requested": "p", "effective": "p"}, "proposer": {"requested": "q", "effective": "q"}},
        "config": {"gepa": {"max_generations": 2}},
        "origins": [{"field": "gepa.max_generations", "value": 2, "origin": "file:3:1"}],
        "usage": None,
        "history": [{**step, "worker_id": None, "fencing_token": None, "detail": None}],
        **more,
    }


def recorded() -> list[dict[str, Any]]:
    """Return the events of a recorded run."""
    return [json.loads(line) for line in RECORDED.read_text().splitlines()]


def sse(events: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """Encode events as a server-sent event stream."""
    for event in events:
        line = json.dumps(event)
        yield f"id: {event['sequence_number']}\ndata: {line}\n\n".encode()


END = b'event: end\ndata: {"status": "completed"}\n\n'
Handler = Callable[[ReceivedRequest], Answer]


class StandInService:
    """The server and its received requests; answers queued for a path are used first, in order."""

    def __init__(self) -> None:
        self.seen: list[ReceivedRequest] = []
        self.events = recorded()
        self.routes: dict[tuple[str, str], Handler] = {}
        self._first: dict[str, deque[Answer | Handler]] = {}
        self.address = ""

    def route(self, method: str, path: str, answer: Answer | Handler | dict[str, Any]) -> None:
        """Set the answer of a path."""
        if isinstance(answer, dict):
            answer = Answer(body=answer)
        self.routes[method, path] = (lambda _seen: answer) if isinstance(answer, Answer) else answer

    def first(self, path: str, *answers: Answer | Handler) -> None:
        """Queue an answer of a path, used before its usual one."""
        self._first.setdefault(path, deque()).extend(answers)

    def calls(self, path: str) -> list[ReceivedRequest]:
        """Return the received requests of a path."""
        return [seen for seen in self.seen if seen.path == path]

    def answer(self, seen: ReceivedRequest) -> Answer:
        """Answer a request."""
        self.seen.append(seen)
        waiting = self._first.get(seen.path)
        if waiting:
            chosen = waiting.popleft()
            return chosen if isinstance(chosen, Answer) else chosen(seen)
        handler = self.routes.get((seen.method, seen.path))
        if handler is None:
            return refusal(404, "route_not_found", "synth_optimizer_http_error", f"there is no {seen.path}")
        return handler(seen)

    def feed(self, seen: ReceivedRequest) -> Answer:
        """Answer with a page of events, or with a stream of them."""
        after = int(seen.headers.get("last-event-id", seen.params.get("after", "-1")))
        rest = [event for event in self.events if event["sequence_number"] > after]
        if "text/event-stream" not in seen.headers.get("accept", ""):
            items = rest[: int(seen.params.get("limit", "100"))]
            last = self.events[-1]["sequence_number"]
            next_after = items[-1]["sequence_number"] if items else after
            return Answer(body={"items": items, "next_after": next_after, "last_sequence": last, "is_terminal": True})
        if not rest:
            return Answer(204)
        return streamed([b": begun\n\n", *sse(rest), END])


def streamed(pieces: Iterable[bytes]) -> Answer:
    """Return a stream that ends after its chunks."""
    return Answer(200, headers={"content-type": "text/event-stream"}, stream=pieces)


@contextlib.contextmanager
def serve_stand_in() -> Iterator[StandInService]:
    """Serve on a free port of loopback."""
    standin = StandInService()
    standin.route("GET", f"/runs/{RUN_ID}/events", standin.feed)

    class Serving(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_call(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            known = json.loads(body) if body else None
            seen = ReceivedRequest(self.command, unquote(parts.path), dict(parse_qsl(parts.query)), headers, known)
            self.reply(standin.answer(seen))

        def reply(self, answer: Answer) -> None:
            if answer.drop:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in {"x-request-id": "req_1", **answer.headers}.items():
                self.send_header(name, value)
            if answer.stream is not None:
                self.send_header("connection", "close")
                self.end_headers()
                self.close_connection = True
                with contextlib.suppress(OSError):
                    for piece in answer.stream:
                        self.wfile.write(piece)
                        self.wfile.flush()
                return
            body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            if answer.status in (204, 304):
                body = b""
            elif "content-type" not in answer.headers:
                self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = handle_call  # noqa: N815 (the names of the base class)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the base class)
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Serving)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    standin.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield standin
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def serve_directory(service: StandInService, run_dir: Path) -> str:
    """Serve the run of a directory as the service does, and return its id."""
    from synth_optimizers._synth_optimizers import (
        run_best,
        run_compare,
        run_lineage,
        run_rows,
        run_status,
        run_summary,
        run_turn,
        run_turns,
    )

    status, summary, best = run_status(run_dir), run_summary(run_dir), run_best(run_dir)
    run_id, path = status["run_id"], f"/runs/{status['run_id']}"
    times = {name: status[name] for name in ("started_at", "finished_at", "updated_at")}
    request = entry(run_id, status["state"], **times, best_candidate_id=status["best_candidate_id"])
    frontier = set(summary["frontier"])
    candidates = [
        {
            **known,
            "is_best": known["candidate_id"] == status["best_candidate_id"],
            "on_frontier": known["candidate_id"] in frontier,
        }
        for known in summary["candidates"]
    ]
    service.events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    service.route("GET", "/runs", {"items": [request], "next_cursor": None})
    service.route("GET", path, detail(request, {**status, "holder": None}, config=summary["config"]))
    service.route("GET", f"{path}/events", service.feed)
    service.route("GET", f"{path}/candidates", {"items": candidates, "next_cursor": None})
    service.route("GET", f"{path}/best", {**(best or {}), "sequence": 40})
    service.route("GET", f"{path}/lineage", run_lineage(run_dir))
    service.route("GET", f"{path}/rows", lambda seen: Answer(body=run_rows(run_dir, _typed(seen.params))))
    turns = run_turns(run_dir)
    service.route("GET", f"{path}/turns", turns)
    for turn in turns["items"]:
        service.route("GET", f"{path}/turns/{turn['turn']}", run_turn(run_dir, str(turn["turn"])))
    service.route("GET", f"{path}/compare/{run_id}", run_compare(run_dir, run_dir))
    files = []
    for file in sorted(run_dir.rglob("*")):
        name = file.relative_to(run_dir).as_posix()
        if file.is_file() and (name in ARTIFACTS or name.startswith("proposer_transcripts/")):
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            files.append({"name": name, "kind": "file", "bytes": len(content), "sha256": digest})
            headers = {"etag": f'"{digest}"', "content-type": "application/octet-stream"}
            service.route("GET", f"{path}/artifacts/{name}", Answer(200, content, headers))
    service.route("GET", f"{path}/artifacts", {"items": files})
    for action in ("cancel", "stop", "pause", "resume"):
        known = {"run_id": run_id, "action": action, "acknowledgement": "accepted", "status": "running"}
        service.route("POST", f"{path}/{action}", Answer(202, {**known, "message": f"{action} is on its way"}))
    return str(run_id)


def _typed(params: Mapping[str, str]) -> dict[str, Any]:
    """Return query parameters with their numbers as numbers."""
    return {name: int(value) if value.isdigit() else value for name, value in params.items()}
