"""Only requests with the right host and origin are accepted, and every error has the same shape."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from support.service import Service, run_service

from service.routes import JSON, MUTATING, ROUTES, Route, assert_error, queue_router
from service.wire import answer, ask, connect, head, send

FOREIGN = [
    "https://evil.example",
    "null",
    "http://localhost.evil.example",
    "http://localhost@evil.example",
    "http://evil.example#localhost",
    "ftp://localhost",
    "file://",
    "localhost",
    "",
]
SIMPLE = ["text/plain", "text/plain; x=application/json", "application/x-www-form-urlencoded", "multipart/form-data"]
"""Content types that a page of any site can send without a CORS preflight."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service with one queued run, which must be unchanged at the end."""
    with run_service(tmp_path_factory.mktemp("guard")) as running:
        before = queue_router(running)
        yield running
        after = running.request("router")
        assert {name: after[name] for name in ("status", "updated_at")} == {
            name: before[name] for name in ("status", "updated_at")
        }
        assert running.get("/workspace")["runs"]["total"] == 1


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_another_host_is_refused_on_every_route(route: Route, service: Service) -> None:
    for host in ("evil.example", f"evil.example:{urlsplit(service.url).port}"):
        for more in ({}, {"accept": "text/event-stream"}):
            reply = ask(service, route.method, route.path(), {"host": host, **JSON, **more}, "{}")
            error = assert_error(reply, 403, "host_not_allowed")
            assert host in str(error["message"])


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "localhost@evil.example",
        "evil.example@localhost",
        "evil.example/localhost",
        "localhost, evil.example",
        "localhost:evil",
        "localhost:99999",
        "[::1",
        "169.254.169.254",
        "2130706433",
        "xn--lcalhost-54a",
        "",
    ],
)
def test_a_lookalike_of_this_host_is_refused(host: str, service: Service) -> None:
    assert_error(send(service, head("GET /health", host=host)), 403, "host_not_allowed")


@pytest.mark.parametrize("host", ["localhost", "LocalHost", "127.0.0.1", "[::1]"])
def test_this_host_is_accepted_by_all_its_names_with_and_without_a_port(host: str, service: Service) -> None:
    for named in (host, f"{host}:{urlsplit(service.url).port}"):
        assert send(service, head("GET /health", host=named)).status_code == 200


def test_a_request_must_have_exactly_one_host(service: Service) -> None:
    for lines in ([], ["Host: localhost", "Host: localhost"], ["Host: localhost", "Host: evil.example"]):
        assert_error(send(service, head("GET /health", *lines, host=None)), 403, "host_not_allowed")
    not_text = send(service, b"GET /health HTTP/1.1\r\nHost: \xff\r\n\r\n")
    assert_error(not_text, 403, "host_not_allowed")
    # HTTP/1.0 has no Host header, but a page could use its answer all the same.
    assert_error(send(service, b"GET /health HTTP/1.0\r\n\r\n"), 403, "host_not_allowed")


def test_an_absolute_target_with_another_host_is_refused(service: Service) -> None:
    assert send(service, head("GET http://localhost/health")).status_code == 200
    for target in ("http://evil.example/health", "http://localhost@evil.example/health", "https://evil.example/health"):
        assert_error(send(service, head(f"GET {target}")), 403, "host_not_allowed")
        assert_error(send(service, head(f"GET {target}", host="evil.example")), 403, "host_not_allowed")
    assert_error(send(service, head("GET http://localhost/health", host="evil.example")), 403, "host_not_allowed")


def test_the_error_names_the_refused_host(service: Service) -> None:
    error = assert_error(send(service, head("GET http://evil.example/health")), 403, "host_not_allowed")
    assert "evil.example" in str(error["message"])


def test_an_allowed_host_is_accepted(tmp_path_factory: pytest.TempPathFactory) -> None:
    with run_service(tmp_path_factory.mktemp("named"), "--allow-host", "optimizer.internal") as named:
        assert send(named, head("GET /health", host="Optimizer.internal:8879")).status_code == 200
        assert_error(send(named, head("GET /health", host="other.internal")), 403, "host_not_allowed")


@pytest.mark.parametrize("route", MUTATING, ids=str)
def test_a_request_of_another_site_changes_nothing(route: Route, service: Service) -> None:
    for origin in FOREIGN:
        reply = ask(service, route.method, route.path(), {**JSON, "origin": origin}, "{}")
        assert_error(reply, 403, "origin_not_allowed")
        # A browser sends this CORS preflight first, and continues only if it is allowed.
        wish = {"origin": origin, "access-control-request-method": route.method}
        reply = service.http.options(route.path(), headers=wish)
        assert_error(reply, 403, "origin_not_allowed")
        assert not [name for name in reply.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("route", MUTATING, ids=str)
def test_a_body_with_a_simple_content_type_changes_nothing(route: Route, service: Service) -> None:
    for kind in SIMPLE:
        for more in ({}, {"origin": "http://localhost"}):
            reply = ask(service, route.method, route.path(), {"content-type": kind, **more}, '{"dry_run": false}')
            assert_error(reply, 415, "content_type_not_json")
    assert_error(ask(service, route.method, route.path(), {}, "{}"), 415, "content_type_not_json")
    chunked = head(f"{route.method} {route.path()}", "Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n"
    assert_error(send(service, chunked), 415, "content_type_not_json")
    both = ["Content-Type: text/plain", "Content-Type: application/json", "Content-Length: 2"]
    twice = head(f"{route.method} {route.path()}", *both) + b"{}"
    assert_error(send(service, twice), 415, "content_type_not_json")


@pytest.mark.parametrize("route", [route for route in ROUTES if not route.mutates], ids=str)
def test_a_request_of_another_site_reads_nothing(route: Route, service: Service) -> None:
    for more in ({}, {"accept": "text/event-stream"}):
        reply = service.http.get(route.path(), headers={"origin": "https://evil.example", **more})
        assert_error(reply, 403, "origin_not_allowed")


def test_no_answer_has_cors_headers(service: Service) -> None:
    named = urlsplit(service.url)
    for host in (named.netloc, f"localhost:{named.port}", f"[::1]:{named.port}", "localhost"):
        for method in ("GET", "HEAD", "OPTIONS"):
            reply = ask(service, method, "/health", {"host": host, "origin": f"http://{host}"})
            assert reply.status_code == (405 if method == "OPTIONS" else 200)
            assert not [name for name in reply.headers if name.startswith("access-control-")]
    two = head("GET /health", "Origin: http://localhost", "Origin: https://evil.example")
    assert_error(send(service, two), 403, "origin_not_allowed")


def test_another_port_of_this_machine_is_another_site(service: Service) -> None:
    named = urlsplit(service.url)
    assert named.port is not None
    for origin in ("http://localhost", f"http://127.0.0.1:{named.port + 1}", f"https://{named.netloc}:1"):
        reply = ask(service, "GET", "/health", {"host": named.netloc, "origin": origin})
        assert_error(reply, 403, "origin_not_allowed")


def test_an_upgrade_request_does_not_bypass_the_guard(service: Service) -> None:
    upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eA=="]
    foreign = send(service, head("GET /runs/router/events", *upgrade, "Origin: https://evil.example"))
    assert_error(foreign, 403, "origin_not_allowed")
    assert send(service, head("GET /runs/router/events", *upgrade)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/nothing", None, 404, "route_not_found"),
        ("GET", "/runs/", None, 404, "route_not_found"),
        ("GET", "//health", None, 404, "route_not_found"),
        ("GET", "/HEALTH", None, 404, "route_not_found"),
        ("GET", "/runs/router/nothing", None, 404, "route_not_found"),
        ("POST", "/nothing", "{}", 404, "route_not_found"),
        ("PUT", "/runs", "{}", 405, "method_not_allowed"),
        ("PATCH", "/runs/router", "{}", 405, "method_not_allowed"),
        ("POST", "/health", "{}", 405, "method_not_allowed"),
        ("TRACE", "/health", None, 405, "method_not_allowed"),
        ("DELETE", "/runs", None, 405, "method_not_allowed"),
        ("GET", "/worker/tick", None, 405, "method_not_allowed"),
        ("GET", "/runs/missing", None, 404, "run_not_found"),
        ("DELETE", "/runs/router", None, 409, "not_terminal"),
        ("POST", "/runs/missing/cancel", "{}", 404, "run_not_found"),
        ("POST", "/runs/router/step", "{}", 409, "manual_step_required"),
        ("GET", "/runs/router/best", None, 404, "no_best_candidate"),
        ("GET", "/runs/router/candidates/x", None, 404, "candidate_not_found"),
        ("GET", "/runs/router/rollouts/x", None, 404, "rollout_not_found"),
        ("GET", "/runs/router/artifacts/x", None, 404, "artifact_not_found"),
        ("GET", "/runs?limit=0", None, 422, "invalid_parameter"),
        ("GET", "/runs?limit=x", None, 422, "invalid_parameter"),
        ("GET", "/runs?nothing=1", None, 422, "invalid_parameter"),
        ("GET", "/runs?state=done", None, 422, "invalid_parameter"),
        ("GET", "/runs/router/best?timeout_seconds=61", None, 422, "invalid_parameter"),
        ("POST", "/runs", "{}", 422, "invalid_request"),
        ("POST", "/runs", '{"nothing": 1}', 422, "invalid_request"),
        ("POST", "/runs", '{"config": 1}', 422, "invalid_request"),
        ("POST", "/runs", "{", 400, "invalid_json"),
        ("POST", "/runs", '{"config": {}, "allow_unverified": true}', 422, "invalid_config"),
        ("POST", "/runs/router/pause", '{"timeout_seconds": 0}', 422, "invalid_request"),
        ("POST", "/worker/tick", '{"lease_seconds": 0}', 422, "invalid_request"),
        ("POST", "/workspace/prune", '{"older_than": "soon"}', 422, "invalid_request"),
    ],
)
def test_every_error_has_the_same_shape(
    method: str, path: str, body: str | None, status: int, code: str, service: Service
) -> None:
    reply = ask(service, method, path, JSON if body is not None else {}, body)
    assert str(assert_error(reply, status, code)["error_code"]).startswith("synth_optimizer_")
    assert ("allow" in reply.headers) == (status == 405)


def test_a_valid_request_id_is_kept(service: Service) -> None:
    mine = service.http.get("/nothing", headers={"x-request-id": "mine-1.a:b_c"})
    assert assert_error(mine, 404, "route_not_found")["request_id"] == "mine-1.a:b_c"
    for hostile in ("two words", "<b>", "a" * 129, "a;b", "", "%0d%0aset-cookie"):
        other = service.http.get("/nothing", headers={"x-request-id": hostile})
        assert str(assert_error(other, 404, "route_not_found")["request_id"]).startswith("req_")
    names = {service.http.get("/health").headers["x-request-id"] for _ in range(20)}
    assert len(names) == 20


def test_an_early_error_leaves_the_connection_usable(service: Service) -> None:
    first = head("POST /runs/router/cancel", "Content-Type: text/plain", "Content-Length: 2")
    with connect(service) as connection:
        connection.sendall(first)
        reply = answer(connection, "POST")
        assert_error(reply, 415, "content_type_not_json")
        # Either the answer closes the connection, or the next request on it is answered. Otherwise a client with
        # keep-alive would occasionally lose a request.
        if reply.headers.get("connection") != "close":
            connection.sendall(b"{}" + head("GET /health"))
            assert answer(connection).status_code == 200


def test_a_successful_answer_contains_no_error(service: Service) -> None:
    for route in ROUTES:
        if not route.mutates:
            reply = service.http.get(route.path())
            if reply.is_success and "json" in reply.headers["content-type"]:
                assert reply.json().get("error") is None, route
    report = service.ask("POST", "/runs/preflight", {"config": {}, "allow_unverified": True})
    assert report.status_code == 200
    assert "error" not in report.json()
