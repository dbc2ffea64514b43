"""Egress policy: the service calls only addresses that its owner allows."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cli.commands import run_cli
from support.service import Service, run_service

from service.config_root import ConfigRoot
from service.routes import assert_error
from synth_optimizers import workspace_submit_run_request

METADATA = [
    "http://169.254.169.254",
    "http://169.254.169.254:80/latest/meta-data",
    "http://2852039166",
    "http://0xa9fea9fe",
    "http://0xa9.0xfe.0xa9.0xfe",
    "http://0251.0376.0251.0376",
    "http://169.254.43518",
    "http://[::ffff:169.254.169.254]",
    "http://[::ffff:a9fe:a9fe]",
    "http://[0:0:0:0:0:ffff:a9fe:a9fe]",
    "http://[64:ff9b::a9fe:a9fe]",
    "http://[fd00:ec2::254]",
    "http://\uff11\uff16\uff19.254.169.254",
    "http://169\u3002254\u3002169\u3002254",
    "https://169.254.169.254",
    "http://10.0.0.1",
    "http://192.168.0.1",
    "http://100.100.100.200",
    "http://[fe80::1]",
    "http://[::]:9100",
    "http://126.255.255.255",
    "http://128.0.0.1",
]
"""Spellings of the metadata address of cloud providers, and neighbouring addresses."""
HERE = ["0.0.0.0", "0", "0x0", "000.0.0.0", "[::ffff:0.0.0.0]"]  # noqa: S104 (not bound)
"""Addresses that are not loopback, but that reach this machine."""
ODD = [
    "file:///etc/passwd",
    "gopher://127.0.0.1:{port}/_x",
    "ftp://127.0.0.1:{port}",
    "unix:///run/docker.sock",
    "//127.0.0.1:{port}",
    "127.0.0.1:{port}",
    "javascript:alert(1)",
    "http://",
    "http://127.0.0.1:0",
    "http://127.0.0.1:99999",
    "http://127.0.0.1:{port}@169.254.169.254",
    "http://me@127.0.0.1:{port}",
    "http://127.0.0.1:{port}#@169.254.169.254",
    "http://127.0.0.1:{port}\\@169.254.169.254",
    "http://127.0.0.1:{port}/\r\nX: y",
    "http://127.0.0.1 :{port}",
]
"""URLs that are not addresses of a container."""


@contextlib.contextmanager
def listening() -> Iterator[tuple[int, list[str]]]:
    """Listen on loopback and yield the port and the received calls; every call is answered with 404."""
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def setup(self) -> None:
            received.append("connection")
            super().setup()

        def do_GET(self) -> None:
            received.append(self.path)
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name in the base)
            """Log nothing."""

    with serve(Handler) as port:
        yield port, received


@contextlib.contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Serve on a free port of loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def blockers(place: ConfigRoot, url: str, service: Service | None = None) -> list[dict[str, Any]]:
    """Return the preflight findings of a run with this container URL; `POST /runs` must report the same."""
    sections = place.sections()
    sections["container"]["url"] = url
    asked = service or place.service
    report = asked.ask("POST", "/runs/preflight", {"config": sections})
    assert report.status_code == 200, report.text
    found: list[dict[str, Any]] = report.json()["blockers"]
    refusal = asked.ask("POST", "/runs", {"config": sections, "auto_start": False})
    assert refusal.status_code == 422, refusal.text
    told = refusal.json()["error"]["field_errors"]
    assert [each["code"] for each in told] == [each["code"] for each in found]
    return found


@pytest.mark.parametrize("url", METADATA)
def test_a_remote_address_is_not_called(url: str, place: ConfigRoot) -> None:
    (blocker,) = blockers(place, url)
    assert blocker["field"] == "container.url"
    assert blocker["message"].startswith("container_not_allowed: ")
    assert "--allow-container" in blocker["hint"]


@pytest.mark.parametrize("host", HERE)
def test_an_unspecified_address_is_not_called(host: str, place: ConfigRoot) -> None:
    with listening() as (port, received):
        (blocker,) = blockers(place, f"http://{host}:{port}")
        assert blocker["message"].startswith("container_not_allowed: ")
        assert received == []


@pytest.mark.parametrize("url", ODD)
def test_an_invalid_container_url_is_not_called(url: str, place: ConfigRoot) -> None:
    with listening() as (port, received):
        found = blockers(place, url.format(port=port))
        assert {each["field"] for each in found} == {"container.url"}
        assert received == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "127.1", "2130706433", "[::ffff:127.0.0.1]"])
def test_loopback_is_called(host: str, place: ConfigRoot) -> None:
    with listening() as (port, received):
        found = blockers(place, f"http://{host}:{port}")
        assert not [each for each in found if "container_not_allowed" in each["message"]]
        assert "connection" in received


def test_a_run_queued_without_checks_does_not_call_remote_addresses(place: ConfigRoot) -> None:
    with listening() as (port, received):
        sections = place.sections()
        sections["run"]["run_id"] = "unseen"
        sections["container"]["url"] = f"http://0.0.0.0:{port}"
        reply = place.service.submit(sections, allow_unverified=True)
        assert_error(reply, 422, "preflight_failed")
        # A client that writes to the queue database bypasses the checks of submit, but the worker checks again.
        config = place.outside / "unseen.toml"
        text = (place.root / "gepa.toml").read_text(encoding="utf-8")
        known = place.sections()["container"]["url"]
        config.write_text(text.replace(known, f"http://0.0.0.0:{port}").replace('"router"', '"unseen"'))
        workspace_submit_run_request(place.outside / "service.sqlite", config)
        request = place.service.wait("unseen", "failed")
        assert "container_not_allowed" in request["error"]["message"]
        assert received == []


def test_a_redirect_is_not_followed(place: ConfigRoot) -> None:
    with listening() as (port, received):
        seen = []

        class Redirecting(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append(self.path)
                self.send_response(302 if len(seen) % 2 else 307)
                self.send_header("location", f"http://127.0.0.1:{port}{self.path}")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name in the base)
                """Log nothing."""

        with serve(Redirecting) as redirecting:
            found = blockers(place, f"http://127.0.0.1:{redirecting}")
        assert seen
        assert found
        assert received == []


def test_an_allowed_network_is_called(place: ConfigRoot, tmp_path: Path) -> None:
    with listening() as (port, received):
        allowed = ("--allow-container", f"0.0.0.0:{port}", "--allow-container", "198.51.100.0/24")
        with run_service(tmp_path, *allowed) as service:
            found = blockers(place, f"http://0.0.0.0:{port}", service)
            assert not [each for each in found if "container_not_allowed" in each["message"]]
            assert "connection" in received
            # Another port and all other addresses remain forbidden.
            for url in (f"http://0.0.0.0:{port + 1}", "http://169.254.169.254", "http://198.51.101.1"):
                (blocker,) = blockers(place, url, service)
                assert blocker["message"].startswith("container_not_allowed: ")


@pytest.mark.parametrize("entry", ["", "10.0.0.0/33", "http://10.0.0.1", "a b", "10.0.0.1:x", "[::1", "*"])
def test_an_invalid_allow_entry_is_refused(entry: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        # If the entry were accepted, the service would still not start: the port is in use.
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ("--db", "service.sqlite", "--bind", bind, "--allow-container", entry)
        ended = run_cli("gepa", "service", *options, cwd=tmp_path)
    assert ended.code == 2, ended.stderr
    assert "is neither a host nor a network" in ended.stderr
