"""Commands on runs of a real service, named by service address and run id, or by the URL of the run."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from cli.commands import end_process, run_cli, start_cli
from support.example import Example
from support.polling import wait_until
from support.service import Service

from service.short_runs import LONG, TINY, config_file, has_event, sections


@pytest.fixture
def place(done: Service) -> Path:
    """Return the directory of the service whose runs are finished."""
    return done.log.parent


def test_runs_are_listed(done: Service, tmp_path: Path) -> None:
    ended = run_cli("runs", "list", "--service", done.url, cwd=tmp_path)
    assert (ended.code, ended.stderr) == (0, "")
    names = [entry["run_id"] for entry in done.get("/runs")["items"]]
    assert [line.split()[0] for line in ended.stdout.splitlines()[1:]] == names
    known = json.loads(run_cli("runs", "list", "--service", done.url, "--json", cwd=tmp_path).stdout)
    assert known["service"] == done.url
    assert [(run["run_id"], run["state"]) for run in known["runs"]] == [
        (entry["run_id"], entry["status"]) for entry in done.get("/runs")["items"]
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("best",),
        ("best", "--json"),
        ("diff",),
        ("watch", "--quiet"),
        ("export", "--out", "-", "--format", "jsonl"),
    ],
    ids=" ".join,
)
def test_a_run_of_a_service_is_shown_like_its_directory(arguments: tuple[str, ...], done: Service, place: Path) -> None:
    action, *options = arguments
    url = f"{done.url}/runs/router"
    local = run_cli("runs", action, "runs/router", *options, cwd=place)
    by_url = run_cli("runs", action, url, *options, cwd=place)
    assert (local.code, by_url.code) == (0, 0), by_url.stderr
    assert by_url.stdout.replace(url, "runs/router") == local.stdout
    assert by_url.stderr.replace(url, "runs/router") == local.stderr


def test_a_run_is_named_by_its_id_or_by_its_url(done: Service, tmp_path: Path) -> None:
    for arguments in (("best", "--field", "router_prompt"), ("diff", "--json")):
        action, *options = arguments
        by_url = run_cli("runs", action, f"{done.url}/runs/router", *options, cwd=tmp_path)
        by_name = run_cli("runs", action, "router", "--service", done.url, *options, cwd=tmp_path)
        assert (by_name.code, by_name.stdout) == (0, by_url.stdout)


def test_a_run_of_a_service_is_shown_on_a_page(done: Service, place: Path) -> None:
    url = f"{done.url}/runs/router"
    local, remote = (run_cli("runs", "show", run, cwd=place) for run in ("router", url))
    assert (remote.code, remote.stderr) == (0, "")
    assert remote.stdout.partition("artifacts")[0] == local.stdout.partition("artifacts")[0]
    assert remote.stdout == run_cli("runs", "show", "router", "--service", done.url, cwd=place).stdout
    known = json.loads(run_cli("runs", "show", url, "--json", cwd=place).stdout)
    assert (known["state"], known["request"]["run_id"]) == ("completed", "router")
    assert f"{url}/artifacts/result_manifest.json" in known["artifacts"]
    cancelled = run_cli("runs", "show", f"{done.url}/runs/c0", cwd=place)
    assert (cancelled.code, "state       cancelled\n" in cancelled.stdout) == (0, True)


def test_export_packs_the_artifacts_of_a_run(done: Service, place: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        out = tmp_path / f"{number}.tar.gz"
        ended = run_cli("runs", "export", f"{done.url}/runs/router", "--out", str(out), cwd=tmp_path)
        assert ended.code == 0, ended.stderr
    assert (tmp_path / "1.tar.gz").read_bytes() == (tmp_path / "2.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "1.tar.gz") as archive:
        names = {name.removeprefix("router/") for name in archive.getnames()}
        assert names >= {known["name"] for known in done.get("/runs/router/artifacts")["items"]} - {"workspace.sqlite"}
        packed = archive.extractfile("router/result_manifest.json")
        assert packed is not None
        assert packed.read() == (place / "runs" / "router" / "result_manifest.json").read_bytes()


def test_a_run_is_watched_to_its_end(service: Service, slow: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, slow, **TINY))
    watching = start_cli("runs", "watch", f"{service.url}/runs/router", "--json", cwd=tmp_path)
    ended = end_process(watching)
    assert ended.code == 0, ended.stderr
    assert json.loads(ended.stdout)["state"] == "completed"
    assert "run         router" in ended.stderr
    assert service.request("router")["status"] == "completed"


def test_a_run_is_cancelled_by_a_command(service: Service, slow: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, slow, **LONG))
    wait_until("a rollout", has_event(service, "router", "rollout.finished"))
    url = f"{service.url}/runs/router"
    watching = start_cli("runs", "watch", url, cwd=tmp_path)
    assert watching.stderr is not None
    # The command watches once it prints the first event.
    assert watching.stderr.readline()
    asked = run_cli("runs", "cancel", url, "--reason", "enough", "--json", cwd=tmp_path)
    assert (asked.code, json.loads(asked.stdout)["acknowledgement"]) == (0, "accepted")
    request = service.wait("router")
    assert (request["status"], request["error"]["message"]) == ("cancelled", "enough")
    watched = end_process(watching)
    assert watched.code == 130
    assert "enough" in watched.stderr
    again = run_cli("runs", "cancel", "router", "--service", service.url, cwd=tmp_path)
    assert again.stdout.startswith("cancel of router: noop, state cancelled")


def test_a_run_of_a_service_can_be_cancelled_through_its_directory(
    service: Service, slow: Example, tmp_path: Path
) -> None:
    service.run_id(config_file(tmp_path, slow, **LONG))
    wait_until("a rollout", has_event(service, "router", "rollout.finished"))
    asked = run_cli("runs", "cancel", "runs/router", "--reason", "enough", cwd=tmp_path)
    assert asked.code == 0, asked.stderr
    request = service.wait("router")
    assert request["status"] == "cancelled"
    assert "enough" in request["error"]["message"]


def test_a_run_is_paused_and_stopped_by_commands(service: Service, slow: Example, tmp_path: Path) -> None:
    service.run_id(config_file(tmp_path, slow, **LONG))
    wait_until("a generation", has_event(service, "router", "generation.started"))
    run = ("router", "--service", service.url)
    assert run_cli("runs", "pause", *run, cwd=tmp_path).stdout.startswith("pause of router: accepted")
    service.wait("router", "paused")
    shown = run_cli("runs", "show", *run, cwd=tmp_path)
    assert "state       paused\nwaits       the run is paused" in shown.stdout
    assert run_cli("runs", "resume", *run, cwd=tmp_path).stdout.startswith("resume of router: accepted")
    assert run_cli("runs", "cancel", "--stop", *run, cwd=tmp_path).stdout.startswith("stop of router: accepted")
    request = service.wait("router")
    assert (request["status"], request["result"]["stopped_by"]["kind"]) == ("completed", "external")


def test_a_watch_of_a_failed_run_exits_with_the_code_of_its_cause(
    service: Service, example: Example, tmp_path: Path
) -> None:
    config = sections(tmp_path, example, **TINY)
    config["container"] |= {"url": "http://127.0.0.1:1", "connect_retries": 0}
    service.run_id(config, allow_unverified=True)
    assert service.wait("router")["status"] == "failed"
    watched = run_cli("runs", "watch", f"{service.url}/runs/router", cwd=tmp_path)
    assert "error       GET /metadata was not sent to 127.0.0.1:1" in watched.stderr
    # An unreachable container has exit code 3, as without a service.
    assert watched.code == 3


def test_a_missing_run_is_refused_like_a_missing_directory(done: Service, tmp_path: Path) -> None:
    local = run_cli("runs", "show", "missing", cwd=tmp_path)
    for run in (("missing", "--service", done.url), (f"{done.url}/runs/missing",)):
        ended = run_cli("runs", "show", *run, cwd=tmp_path)
        assert "missing" in ended.stderr
        assert "hint: " in ended.stderr
        assert ended.code == local.code == 2
