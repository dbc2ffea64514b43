"""Access policy: which addresses, variables and commands of a configuration the service accepts."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cli.commands import run_cli
from support.example import Example
from support.gate import QuietServer
from support.http_server import free_port
from support.service import Service, run_service

from service.short_runs import TINY, expect_error, sections
from service.test_token import TOKEN, token_file
from synth_optimizers import workspace_submit_run_request

CANARY = "canary-of-the-service-51c0"
"""The value of a variable of the service that no configuration may use."""


@contextlib.contextmanager
def listening(upstream: str | None = None, token: str | None = None) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Serve a proxy on loopback; yield its address and the headers of every call.

    It answers 401 to a call without the token, and 404 if there is no upstream.
    """
    received: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def handle_call(self) -> None:
            received.append({name.lower(): value for name, value in self.headers.items()})
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if token is not None and self.headers.get("authorization") != f"Bearer {token}":
                self.reply(401, b'{"detail": "no token"}')
            elif upstream is None:
                self.reply(404, b"{}")
            else:
                parts = urlsplit(upstream)
                with contextlib.closing(http.client.HTTPConnection(str(parts.hostname), parts.port)) as asked:
                    asked.request(self.command, self.path, body or None, {"content-type": "application/json"})
                    answer = asked.getresponse()
                    self.reply(answer.status, answer.read())

        do_GET = do_POST = handle_call  # noqa: N815 (the names of the base class)

        def reply(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name in the base)
            """Log nothing."""

    server = QuietServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def refusals(service: Service, config: dict[str, Any], *, allow_unverified: bool = False) -> dict[str, str]:
    """Return the messages of a refused submission by field; the preflight must report the same."""
    error = expect_error(service.submit(config, allow_unverified=allow_unverified), 422, "preflight_failed")
    report = service.ask("POST", "/runs/preflight", {"config": config, "allow_unverified": allow_unverified}).json()
    assert report["blockers"] == error["field_errors"]
    assert service.get("/runs")["items"] == []
    return {each["field"]: each["message"] for each in error["field_errors"]}


@pytest.mark.parametrize("unverified", [False, True])
def test_a_secret_of_the_service_is_not_sent_to_a_proposer(unverified: bool, tmp_path: Path, example: Example) -> None:
    with listening() as (url, received), run_service(tmp_path, env={"AWS_SECRET_ACCESS_KEY": CANARY}) as service:
        named = {"proposer__base_url": url, "proposer__api_key_env": "AWS_SECRET_ACCESS_KEY"}
        found = refusals(service, sections(tmp_path, example, **TINY, **named), allow_unverified=unverified)
        assert found["proposer.api_key_env"].startswith("variable_not_allowed: ")
        # A client that writes to the queue database bypasses the checks of submit, but the worker checks again.
        workspace_submit_run_request(tmp_path / "service.sqlite", tmp_path / "gepa.toml")
        request = service.wait("router", "failed")
        assert "variable_not_allowed" in request["error"]["message"]
        assert received == []
        assert CANARY not in service.stderr()


@pytest.mark.parametrize(
    "url",
    ["http://169.254.169.254/v1", "http://10.0.0.1/v1", "http://[::ffff:a9fe:a9fe]/v1", "http://0.0.0.0:{port}/v1"],
)
def test_a_proposer_elsewhere_is_not_called(url: str, tmp_path: Path, example: Example) -> None:
    with listening() as (here, received), run_service(tmp_path) as service:
        config = sections(tmp_path, example, **TINY, proposer__base_url=url.format(port=urlsplit(here).port))
        (found,) = refusals(service, config).items()
        assert found[0] == "proposer.base_url"
        assert found[1].startswith("proposer_not_allowed: ")
        workspace_submit_run_request(tmp_path / "service.sqlite", tmp_path / "gepa.toml")
        assert "proposer_not_allowed" in service.wait("router", "failed")["error"]["message"]
        assert received == []


def test_allowed_addresses_and_variables_are_used(tmp_path: Path, example: Example) -> None:
    with listening(example.reflector_url, token=CANARY) as (url, received):
        port = urlsplit(url).port
        allowed = ("--allow-proposer", f"0.0.0.0:{port}", "--allow-key-env", "MY_PROPOSER_KEY")
        with run_service(tmp_path, *allowed, env={"MY_PROPOSER_KEY": CANARY}) as service:
            named = {"proposer__base_url": f"http://0.0.0.0:{port}/v1", "proposer__api_key_env": "MY_PROPOSER_KEY"}
            service.run_id(sections(tmp_path, example, **TINY, **named))
            assert service.wait("router")["status"] == "completed"
            assert all(headers["authorization"] == f"Bearer {CANARY}" for headers in received)


def with_command(place: Path, example: Example, **changes: object) -> tuple[dict[str, Any], Path]:
    """Return a configuration whose command leaves a file, and that file."""
    started = place / "started"
    command = ["sh", "-c", f"touch {started}; exit 3"]
    named = {"container__url": f"http://127.0.0.1:{free_port()}", "container__command": command}
    return sections(place, example, **TINY, **{**named, **changes}), started


def test_commands_can_be_switched_off(tmp_path: Path, example: Example) -> None:
    with run_service(tmp_path, "--no-commands") as service:
        config, started = with_command(tmp_path, example)
        (found,) = refusals(service, config).items()
        assert found[0] == "container.command"
        assert found[1].startswith("command_not_allowed: ")
        codex = {"proposer__backend": None, "proposer__base_url": None, "proposer__command": ["sh"]}
        (found,) = refusals(service, sections(tmp_path, example, **TINY, **codex)).items()
        assert found[0] == "proposer.command"
        workspace_submit_run_request(tmp_path / "service.sqlite", tmp_path / "gepa.toml")
        assert "command_not_allowed" in service.wait("router", "failed")["error"]["message"]
        assert not started.exists()
        # A run that starts no process is accepted.
        service.run_id(sections(tmp_path, example, **TINY, run__run_id="plain"))
        assert service.wait("plain")["status"] == "completed"


def test_a_service_with_a_token_starts_commands_only_if_they_are_allowed(tmp_path: Path, example: Example) -> None:
    options = ("--token-file", str(token_file(tmp_path)))
    config, started = with_command(tmp_path, example)
    with run_service(tmp_path, *options, token=TOKEN) as service:
        assert refusals(service, config)["container.command"].startswith("command_not_allowed: ")
        assert not started.exists()
    with run_service(tmp_path, *options, "--allow-commands", token=TOKEN) as service:
        assert "exited before /health answered" in refusals(service, config)["container.command"]
        assert started.exists()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"proposer__api_key_env": "XAI_API_KEY"}, "proposer.api_key_env"),
        ({"proposer__base_url": "http://127.0.0.1:9/v1"}, "proposer.base_url"),
        ({"run__output_dir": "gepa.toml"}, "run.output_dir"),
        ({"gepa__max_total_rollouts": 3}, "gepa.max_total_rollouts"),
        ({"container__token_env": "OPENAI_API_KEY"}, "container.token_env"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refused_submission_has_started_nothing(
    changes: dict[str, object], field: str, tmp_path: Path, example: Example
) -> None:
    with run_service(tmp_path) as service:
        config, started = with_command(tmp_path, example, **changes)
        assert set(refusals(service, config)) == {field}
        assert not started.exists()


def test_a_container_can_ask_for_a_token(tmp_path: Path, example: Example) -> None:
    with listening(example.container_url, token=CANARY) as (url, received):
        named = {"container__url": url, "container__token_env": "MY_TOKEN"}
        config = sections(tmp_path, example, **TINY, **named)
        with run_service(tmp_path, env={"MY_TOKEN": CANARY}) as service:
            (found,) = refusals(service, config).items()
            assert found[0] == "container.token_env"
            assert "MY_TOKEN" in found[1]
            assert received == []
        with run_service(tmp_path, "--allow-key-env", "MY_TOKEN", env={"MY_TOKEN": CANARY}) as service:
            service.run_id(config)
            assert service.wait("router")["status"] == "completed"
            assert received
            assert all(headers["authorization"] == f"Bearer {CANARY}" for headers in received)
        with run_service(tmp_path, "--allow-key-env", "MY_TOKEN") as service:
            unset = refusals_of_check(service, config)
            assert "is not set" in unset["container.token_env"]
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path


def refusals_of_check(service: Service, config: dict[str, Any]) -> dict[str, str]:
    """Return the messages of a preflight by field."""
    report = service.ask("POST", "/runs/preflight", {"config": config}).json()
    return {each["field"]: each["message"] for each in report["blockers"]}


def test_the_command_line_is_not_restricted(tmp_path: Path, example: Example) -> None:
    with listening(example.reflector_url, token=CANARY) as (url, _):
        address = f"http://0.0.0.0:{urlsplit(url).port}/v1"
        named = {"proposer__base_url": address, "proposer__api_key_env": "AWS_SECRET_ACCESS_KEY"}
        sections(tmp_path, example, **TINY, **named)
        secret = {"AWS_SECRET_ACCESS_KEY": CANARY}
        ended = run_cli("gepa", "check", "--config", "gepa.toml", cwd=tmp_path, env=secret)
        assert ended.code == 0, ended.stderr


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--allow-proposer", "http://models", "is neither a host nor a network"),
        ("--allow-key-env", "sk-not a name", "is not the name of a variable"),
    ],
)
def test_an_invalid_option_is_refused(option: str, value: str, problem: str, tmp_path: Path) -> None:
    ended = run_cli("gepa", "service", "--db", "service.sqlite", "--bind", "127.0.0.1:0", option, value, cwd=tmp_path)
    assert ended.code == 2, ended.stderr
    assert problem in ended.stderr
