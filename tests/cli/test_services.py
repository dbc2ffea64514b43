"""Commands treat runs of a service like runs in a directory."""

from __future__ import annotations

import json
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.example import Example
from support.http_server import free_port
from support.service import run_service
from support.stand_in import (
    END,
    Answer,
    ReceivedRequest,
    StandInService,
    detail,
    entry,
    refusal,
    serve_directory,
    serve_stand_in,
    sse,
    streamed,
)

from cli.commands import SOURCES, CommandResult, assert_snapshot, run_cli
from cli.configs import small_config


@pytest.fixture(scope="module")
def place(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a completed run; tests must not change it."""
    made = tmp_path_factory.mktemp("served")
    small_config(made, example)
    assert run_cli("gepa", "run", "--config", "gepa.toml", "--quiet", cwd=made).code == 0
    return made


@pytest.fixture(scope="module")
def service(place: Path) -> Iterator[StandInService]:
    """Yield a stand-in service that serves the same run."""
    with serve_stand_in() as standin:
        serve_directory(standin, place / "runs" / "router")
        yield standin


def both(place: Path, service: StandInService, *arguments: str) -> tuple[CommandResult, CommandResult]:
    """Run a command on the directory and on the service; `RUN` is replaced by the run."""
    url = f"{service.address}/runs/router"
    local = run_cli(*("runs/router" if word == "RUN" else word for word in arguments), cwd=place)
    remote = run_cli(*(url if word == "RUN" else word for word in arguments), cwd=place)
    assert remote.code == local.code, remote.stderr
    return local, remote


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "best", "RUN"),
        ("runs", "best", "RUN", "--json"),
        ("runs", "best", "RUN", "--field", "router_promt"),
        ("runs", "diff", "RUN"),
        ("runs", "diff", "RUN", "--json"),
        ("runs", "diff", "RUN", "gepa_1b7717a6cd3d", "gepa_nobody"),
        ("runs", "export", "RUN", "--out", "-", "--format", "csv"),
        ("runs", "export", "RUN", "--out", "-", "--format", "jsonl"),
        ("runs", "watch", "RUN", "--quiet"),
    ],
    ids=" ".join,
)
def test_a_run_of_a_service_is_shown_like_one_of_a_directory(
    arguments: tuple[str, ...], place: Path, service: StandInService
) -> None:
    local, remote = both(place, service, *arguments)
    url = f"{service.address}/runs/router"
    assert remote.stdout.replace(url, "runs/router") == local.stdout
    assert remote.stderr.replace(url, "runs/router") == local.stderr


def test_runs_show_of_a_service_prints_its_snapshot(place: Path, service: StandInService) -> None:
    url = f"{service.address}/runs/router"
    assert_snapshot("service_show", run_cli("runs", "show", url, cwd=place), place)
    shown, local = (ended.stdout.partition("artifacts") for ended in both(place, service, "runs", "show", "RUN"))
    assert shown[0] == local[0]
    by_id = run_cli("runs", "show", "router", "--service", service.address, cwd=place)
    assert by_id.stdout == run_cli("runs", "show", url, cwd=place).stdout
    known = json.loads(run_cli("runs", "show", url, "--json", cwd=place).stdout)
    assert known["state"] == "completed"
    assert f"{url}/artifacts/result_manifest.json" in known["artifacts"]
    same = json.loads(run_cli("runs", "show", "router", "--json", cwd=place).stdout)
    assert {name: known[name] for name in ("train_gain", "heldout_gain", "frontier", "config")} == {
        name: same[name] for name in ("train_gain", "heldout_gain", "frontier", "config")
    }


def test_the_runs_of_a_service_are_listed_like_those_of_a_directory(place: Path, service: StandInService) -> None:
    local = run_cli("runs", "list", cwd=place)
    remote = run_cli("runs", "list", "--service", service.address, cwd=place)
    assert (remote.code, remote.stdout, remote.stderr) == (0, local.stdout, "")
    known = json.loads(run_cli("runs", "list", "--service", service.address, "--json", cwd=place).stdout)
    assert known["service"] == service.address
    assert [run["run_id"] for run in known["runs"]] == ["router"]
    assert set(json.loads(run_cli("runs", "list", "--json", cwd=place).stdout)["runs"][0]) <= set(known["runs"][0])


def test_the_files_of_a_service_are_packed_like_those_of_a_directory(
    place: Path, service: StandInService, tmp_path: Path
) -> None:
    both(place, service, "runs", "export", "RUN", "--out", str(tmp_path / "first.zip"), "--force")
    url = f"{service.address}/runs/router"
    for name in ("a.zip", "b.zip"):
        assert run_cli("runs", "export", url, "--out", str(tmp_path / name), cwd=place).code == 0
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    run_cli("runs", "export", "router", "--out", str(tmp_path / "local.zip"), cwd=place)
    with zipfile.ZipFile(tmp_path / "a.zip") as remote, zipfile.ZipFile(tmp_path / "local.zip") as local:
        assert remote.namelist() == local.namelist()
        feed = "router/events.jsonl"
        assert remote.read(feed) == local.read(feed)


def test_a_watch_of_a_service_shows_the_end(place: Path, service: StandInService) -> None:
    url = f"{service.address}/runs/router"
    ended = run_cli("runs", "watch", url, "--json", cwd=place)
    assert ended.code == 0
    assert json.loads(ended.stdout)["state"] == "completed"
    assert f"runs best {url} --out best.txt" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        (("cancel",), "cancel"),
        (("cancel", "--stop"), "stop"),
        (("pause",), "pause"),
        (("pause", "--timeout-seconds", "60"), "pause"),
        (("resume",), "resume"),
    ],
)
def test_control_commands_reach_the_service(
    arguments: tuple[str, ...], action: str, place: Path, service: StandInService
) -> None:
    url = f"{service.address}/runs/router"
    ended = run_cli("runs", *arguments, url, "--reason", "enough", cwd=place)
    assert ended.stdout == f"{action} of router: accepted, state running ({action} is on its way)\n"
    timeout = {"timeout_seconds": 60} if "--timeout-seconds" in arguments else {}
    assert service.seen[-1].body == {"reason": "enough", **timeout}
    known = json.loads(run_cli("runs", *arguments, url, "--json", cwd=place).stdout)
    assert {"run_id", "acknowledgement", "state", "reason"} <= set(known)


def test_a_watch_of_a_run_that_failed_before_its_start_ends(place: Path, service: StandInService) -> None:
    cause = {"error_code": "synth_optimizer_container_error", "message": "no server answers", "hint": "Start it."}
    request = entry("dead", "failed", error=cause)
    service.route("GET", "/runs/dead", detail(request))
    service.route("GET", "/runs/dead/events", Answer(204))
    ended = run_cli("runs", "watch", "dead", "--service", service.address, cwd=place)
    assert ended.code == 3
    assert ended.stderr.splitlines() == [
        "run         dead failed",
        "error       no server answers",
        "hint        Start it.",
    ]
    shown = run_cli("runs", "show", "dead", "--service", service.address, cwd=place)
    assert "error       no server answers\nhint        Start it.\n" in shown.stdout


@pytest.mark.parametrize(
    ("status", "cause", "code"),
    [
        ("failed", {"error_code": "synth_optimizer_container_error", "message": "it told nothing for 60 s"}, 3),
        ("cancelled", {"reason_code": "pause_timeout", "message": "the pause timeout has passed"}, 130),
    ],
)
def test_a_watch_ends_with_the_final_status_of_the_run_request(
    status: str, cause: dict[str, object], code: int, place: Path, service: StandInService
) -> None:
    """The run has no final event, because the process that executed it is gone."""
    begun = service.answer(ReceivedRequest("GET", "/runs/router", {}, {}, None)).body["run"]
    run = {**begun, "run_id": "gone", "state": "rollout_running", "is_terminal": False, "finished_at": None}
    request = entry("gone", status, error=cause, started_at=run["started_at"], finished_at="2026-11-16T12:30:00.000Z")
    service.route("GET", "/runs/gone", detail(request, run))
    events = [{**event, "run_id": "gone"} for event in service.events[:20]]
    service.route("GET", "/runs/gone/events", lambda _seen: streamed([*sse(events), END]))
    ended = run_cli("runs", "watch", "gone", "--service", service.address, "--json", cwd=place)
    assert ended.code == code
    known = json.loads(ended.stdout)
    assert (known["state"], known["is_terminal"], known["failure"]) == (status, True, cause)
    assert known["finished_at"] == "2026-11-16T12:30:00.000Z"
    assert f"run         gone {status}\nerror       {cause['message']}" in ended.stderr


def test_an_unreadable_run_of_a_service_does_not_hide_the_others(place: Path, service: StandInService) -> None:
    good = service.answer(ReceivedRequest("GET", "/runs", {}, {}, None)).body["items"][0]
    bad = entry("bad", "completed", started_at=good["started_at"])
    older = {**good, "request_id": "runreq_older", "status": "failed"}
    service.route("GET", "/runs", {"items": [bad, good, older], "next_cursor": None})
    service.route("GET", "/runs/bad", refusal(500, "internal", "synth_optimizer_invariant_error", "it is damaged"))
    listed = run_cli("runs", "list", "--service", service.address, cwd=place)
    assert listed.code == 0
    assert "warning: bad cannot be read: it is damaged" in listed.stderr
    known = json.loads(run_cli("runs", "list", "--service", service.address, "--json", cwd=place).stdout)
    assert known["unreadable"] == [{"run_id": "bad", "problem": "it is damaged"}]
    assert [(run["run_id"], run["state"]) for run in known["runs"]] == [
        ("bad", "completed"),
        ("router", "completed"),
        ("router", "failed"),
    ]
    # A run has the scores of its newest run request only.
    assert [run["best_train_score"] is None for run in known["runs"]] == [True, False, True]


def test_a_waiting_run_shows_its_reason(place: Path, service: StandInService) -> None:
    waiting = {"reason": "container_busy", "message": "run router uses the container", "since": None}
    service.route("GET", "/runs/next", detail(entry("next", "queued", waiting=waiting)))
    shown = run_cli("runs", "show", "next", "--service", service.address, cwd=place)
    assert shown.code == 0, shown.stderr
    assert "state       queued\nwaits       run router uses the container\n" in shown.stdout
    best = run_cli("runs", "best", "next", "--service", service.address, cwd=place)
    assert best.code == 1
    assert "has no best candidate" in best.stderr


def test_the_token_is_read_from_a_file(place: Path, service: StandInService, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("tk-5555\n")
    ended = run_cli("runs", "list", "--service", service.address, "--token-file", str(tmp_path / "token"), cwd=place)
    assert ended.code == 0
    assert service.seen[-1].headers["authorization"] == "Bearer tk-5555"
    assert "tk-5555" not in ended.stdout + ended.stderr


def test_an_error_of_a_service_is_printed_like_any_other(place: Path, service: StandInService) -> None:
    told = "there is no run 'ruter'"
    service.route("GET", "/runs/ruter", refusal(404, "run_not_found", "synth_optimizer_config_error", told))
    ended = run_cli("runs", "show", f"{service.address}/runs/ruter", cwd=place)
    assert_snapshot("service_run_not_found", ended, place)
    assert ended.code == 2


def test_without_httpx_the_hint_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "httpx.py").write_text("raise ModuleNotFoundError(\"No module named 'httpx'\", name='httpx')\n")
    address = f"http://127.0.0.1:{free_port()}"
    paths = f"{tmp_path}:{SOURCES}"
    ended = run_cli("runs", "list", "--service", address, cwd=tmp_path, env={"PYTHONPATH": paths})
    assert_snapshot("service_without_httpx", ended, tmp_path)
    assert ended.code == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_service_drains_on_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    with run_service(tmp_path, "--workers", "2") as service:
        assert (
            f"service at {service.url}, database service.sqlite, 2 workers, configurations beneath" in service.stderr()
        )
        assert service.end(number) == 0
        said = service.stderr()
    assert f"{number.name}: draining; a second signal stops at once\n" in said
    assert said.splitlines()[-1] == "service stopped; the same command resumes its runs"


def test_a_second_service_reports_which_process_holds_the_database(tmp_path: Path) -> None:
    with run_service(tmp_path) as service:
        ended = run_cli("gepa", "service", "--db", "service.sqlite", "--bind", "127.0.0.1:0", cwd=tmp_path)
        assert ended.code == 1
        holder = f"pid {service.process.pid} bind {service.url.removeprefix('http://')} since "
        assert "service_db_in_use: service.sqlite is in use by another service: " + holder in ended.stderr
        # The first service is not disturbed; a link to the database is refused as well.
        (tmp_path / "link.sqlite").symlink_to("service.sqlite")
        ended = run_cli("gepa", "service", "--db", "link.sqlite", "--bind", "127.0.0.1:0", cwd=tmp_path)
        assert (ended.code, "service_db_in_use" in ended.stderr) == (1, True)
        assert service.get("/ready")["status"] == "ready"
