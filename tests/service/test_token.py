"""A service on a public address requires its token on every route and never reveals it."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.commands import end_process, run_cli, start_cli
from support.service import Service, run_service

from service.routes import JSON, ROUTES, Route, assert_error, queue_router
from service.wire import ask, head, send

TOKEN = "tk-" + "4f9a0c" * 8
"""A long token that occurs nowhere else."""


def token_file(place: Path, text: str = TOKEN + "\n", mode: int = 0o600) -> Path:
    """Write a token file."""
    path = place / "token"
    path.write_text(text)
    path.chmod(mode)
    return path


def start(place: Path, *options: str) -> tuple[int, str]:
    """Start a service that must refuse to start, and return its exit code and output."""
    ended = run_cli("gepa", "service", "--db", "service.sqlite", *options, cwd=place)
    assert ended.stdout == ""
    assert not list(place.glob("service.sqlite*")), "a service that did not start has left a database"
    return ended.code, ended.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the service with a token."""
    return tmp_path_factory.mktemp("token")


@pytest.fixture(scope="module")
def service(place: Path) -> Iterator[Service]:
    """Yield a service with a token and one queued run; its client has the token."""
    with run_service(place, "--token-file", str(token_file(place)), token=TOKEN) as running:
        queue_router(running)
        yield running


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"])
def test_a_public_address_needs_a_token(bind: str, tmp_path: Path) -> None:
    code, said = start(tmp_path, "--bind", bind)
    assert code == 2
    assert f"--bind {bind} is reachable from other machines, and no token is configured" in said
    assert "--token-file" in said


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        (TOKEN, 0o644, "can be read by other users"),
        (TOKEN, 0o640, "can be read by other users"),
        (TOKEN, 0o602, "can be read by other users"),
        ("", 0o600, "at least 32 visible ASCII characters"),
        ("\n\n", 0o600, "at least 32 visible ASCII characters"),
        (TOKEN[:31], 0o600, "at least 32 visible ASCII characters"),
        (f"{TOKEN} {TOKEN}", 0o600, "at least 32 visible ASCII characters"),
        (f"{TOKEN}\n{TOKEN}", 0o600, "at least 32 visible ASCII characters"),
        ("ü" * 40, 0o600, "at least 32 visible ASCII characters"),
    ],
    ids=["0644", "0640", "0602", "empty", "blank", "short", "words", "lines", "not_ascii"],
)
def test_a_weak_token_is_refused(text: str, mode: int, problem: str, tmp_path: Path) -> None:
    path = token_file(tmp_path, text, mode)
    code, said = start(tmp_path, "--bind", "127.0.0.1:0", "--token-file", str(path))
    assert code == 2
    assert problem in said
    assert not text or text[:16] not in said


def test_a_missing_token_file_is_refused(tmp_path: Path) -> None:
    code, said = start(tmp_path, "--bind", "127.0.0.1:0", "--token-file", "nowhere")
    assert "cannot read the token file nowhere" in said
    # The same code as for an invalid token and for a missing configuration.
    assert code == 2


def test_the_page_itself_needs_no_token_but_shows_nothing_without_it(service: Service) -> None:
    for path in ("/ui/", "/ui/runs/router", "/ui/assets/app.js"):
        reply = ask(service, "GET", path, {})
        assert reply.status_code == 200, path
        assert "router" not in reply.text
    assert_error(ask(service, "GET", "/views/runs/router", {}), 401, "unauthorized")


@pytest.mark.parametrize("route", [route for route in ROUTES if not route.template.startswith("/ui")], ids=str)
def test_requests_without_the_token_are_refused(route: Route, service: Service) -> None:
    basic = base64.b64encode(f"me:{TOKEN}".encode()).decode()
    wrong = [None, "", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {basic}", TOKEN]
    for authorization in (*wrong, f"Bearer {TOKEN.upper()}", f"Token {TOKEN}", f"Bearer {TOKEN}, Bearer x"):
        for more in ({}, {"accept": "text/event-stream"}):
            given = {} if authorization is None else {"authorization": authorization}
            reply = ask(service, route.method, route.path(), {**JSON, **given, **more}, "{}")
            error = assert_error(reply, 401, "unauthorized")
            assert reply.headers["www-authenticate"] == "Bearer"
            assert TOKEN not in reply.text + str(reply.headers)
            assert "--token-file" in str(error["hint"])


def test_an_unknown_route_without_the_token_is_unauthorized(service: Service) -> None:
    assert_error(ask(service, "GET", "/nothing", {}), 401, "unauthorized")
    assert_error(ask(service, "GET", f"/health?token={TOKEN}", {}), 401, "unauthorized")
    assert_error(ask(service, "GET", "/health", {"cookie": f"token={TOKEN}"}), 401, "unauthorized")
    first_counts = head("GET /health", "Authorization: Bearer x", f"Authorization: Bearer {TOKEN}")
    assert_error(send(service, first_counts), 401, "unauthorized")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_requests_with_the_token_are_answered(scheme: str, service: Service) -> None:
    given = {"authorization": f"{scheme} {TOKEN}"}
    for path in ("/health", "/ready", "/status", "/runs", "/runs/router", "/metrics", "/openapi.json"):
        assert ask(service, "GET", path, given).status_code == 200
    assert ask(service, "POST", "/worker/recover", given).status_code == 200
    # The token alone does not admit a page of another site.
    foreign = ask(service, "GET", "/health", {**given, "origin": "https://evil.example"})
    assert_error(foreign, 403, "origin_not_allowed")


def test_the_token_is_in_no_file_and_no_answer(service: Service, place: Path) -> None:
    for route in ROUTES:
        reply = service.http.request(route.method, route.path(), headers=JSON if route.mutates else {})
        assert TOKEN not in reply.text + str(reply.headers), route
    assert TOKEN not in Path(f"/proc/{service.process.pid}/cmdline").read_text()
    assert service.end() == 0
    assert service.process.stdout is not None
    assert TOKEN not in service.process.stdout.read() + service.stderr()
    files = [path for path in place.rglob("*") if path.is_file() and path.name != "token"]
    assert [path.name for path in files if TOKEN.encode() in path.read_bytes()] == []


def test_the_token_is_not_printed_at_startup(tmp_path: Path) -> None:
    token = ("--token-file", str(token_file(tmp_path)))
    process = start_cli("gepa", "service", "--db", "x.sqlite", "--bind", "127.0.0.1:0", *token, "--json", cwd=tmp_path)
    told = ""
    try:
        assert process.stdout is not None
        while not told.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "it did not start"
            told += line
    finally:
        ended = end_process(process, signal.SIGTERM)
    assert json.loads(told)["url"].startswith("http://127.0.0.1:")
    assert TOKEN not in told + ended.stdout + ended.stderr
