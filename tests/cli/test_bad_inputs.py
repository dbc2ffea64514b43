"""Bad inputs: each is refused with the value, its location, a hint, and the exit code of its kind."""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.http_server import free_port, serve_calls

from cli.commands import CommandResult, assert_snapshot, run_cli
from cli.configs import write_config

RECORDED = Path(__file__).parent / "recorded" / "events.jsonl"
RUN = ("gepa", "run", "--config", "gepa.toml")


@dataclass(frozen=True)
class Case:
    """A command that is refused, and how its directory is prepared."""

    name: str
    arguments: tuple[str, ...]
    code: int
    prepare: Callable[[Path], object] = lambda place: place


def config(old: str, new: str) -> Callable[[Path], object]:
    """Return a preparation that changes the configuration."""

    def prepare(place: Path) -> None:
        path = place / "gepa.toml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return prepare


def file(name: str, content: bytes) -> Callable[[Path], object]:
    """Return a preparation that writes a file."""

    def prepare(place: Path) -> None:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)

    return prepare


def other_program(place: Path) -> None:
    """Create a database of another program."""
    with sqlite3.connect(place / "other.sqlite") as db:
        db.execute("CREATE TABLE songs (title TEXT)")


def feed(place: Path) -> None:
    """Copy a recorded feed into the directory."""
    shutil.copy(RECORDED, place / "events.jsonl")


def two_feeds(place: Path) -> None:
    """Create two normalized feeds that differ in their second event."""
    lines = [
        {"type": "gepa.run.started", "fields": {"seed": 7}},
        {"type": "heldout.skipped", "fields": {"reason": "a"}},
    ]
    (place / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    lines[1]["fields"] = {"reason": "b"}
    (place / "b.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def known_runs(place: Path) -> None:
    """Create a directory of runs."""
    for name in ("alpha", "beta"):
        file(f"runs/{name}/events.jsonl", RECORDED.read_bytes())(place)


def damaged_run(place: Path) -> None:
    """Create a run whose workspace is not a database."""
    known_runs(place)
    file("runs/alpha/workspace.sqlite", b"not a database" * 100)(place)


CASES = [
    # usage
    Case("unknown_command", ("gepa", "rnu"), 2),
    Case("unknown_group", ("run",), 2),
    Case("unknown_option", (*RUN, "--dryrun"), 2),
    Case("missing_option", ("gepa", "run"), 2),
    Case("missing_argument", ("runs", "best"), 2),
    Case("extra_argument", (*RUN, "again"), 2),
    Case("bad_choice", ("completion", "tcsh"), 2),
    Case("usage_as_json", ("gepa", "run", "--json"), 2),
    # configuration
    Case("missing_file", ("gepa", "run", "--config", "nowhere.toml"), 2),
    Case("bad_toml", RUN, 2, config("seed = 7", "seed = = 7")),
    Case("non_utf8_file", RUN, 2, file("gepa.toml", b'[run]\nrun_id = "caf\xe9"\n')),
    Case("unknown_key", RUN, 2, config("minibatch_size", "minibatch_sise")),
    Case("wrong_type", RUN, 2, config("seed = 7", 'seed = "seven"')),
    Case("config_as_json", (*RUN, "--json"), 2, config("seed = 7", 'seed = "seven"')),
    Case("contradictory_limits", (*RUN, "--set", "gepa.max_time_seconds=600"), 2),
    Case("invalid_override", (*RUN, "--set", "gepa.minibatch_size"), 2),
    Case("set_unknown_field", (*RUN, "--set", "gepa.minibatch=4"), 2),
    Case("set_wrong_value", (*RUN, "--set", "cache.mode=readonli"), 2),
    Case("unknown_tracker", (*RUN, "--track", "wanbd"), 2),
    Case("invalid_run_id", (*RUN, "--set", "run.run_id=../up"), 2),
    Case("unknown_backend", (*RUN, "--set", "proposer.backend=magic"), 2),
    # before the run
    Case("dead_container", RUN, 3),
    Case("readonly_miss", (*RUN, "--set", "cache.mode=readonly"), 4),
    Case("output_is_a_file", RUN, 1, file("runs", b"not a directory")),
    Case("corrupt_workspace", RUN, 1, file("runs/router/workspace.sqlite", b"not a database" * 100)),
    # run directories
    Case("unknown_run", ("runs", "show", "alpa"), 2, known_runs),
    Case("no_runs", ("runs", "show", "alpha"), 2),
    Case("no_root", ("runs", "list", "--root", "nowhere"), 2),
    Case("not_a_run_directory", ("runs", "best", "."), 2),
    Case("run_without_candidates", ("runs", "best", "alpha"), 1, known_runs),
    Case("export_of_a_damaged_workspace", ("runs", "export", "alpha", "--out", "alpha.zip"), 1, damaged_run),
    Case("archive_to_stdout", ("runs", "export", "alpha", "--out", "-"), 2, known_runs),
    Case("no_directory_for_the_file", ("runs", "export", "alpha", "--out", "no/where.zip"), 2, known_runs),
    Case("resume_nothing", ("gepa", "resume", "nowhere"), 2),
    # services
    Case("service_unreachable", ("runs", "list", "--service", "http://127.0.0.1:1"), 3),
    Case("service_bad_address", ("runs", "list", "--service", "127.0.0.1:8879"), 2),
    Case("run_url_without_a_run", ("runs", "show", "http://127.0.0.1:8879"), 2),
    Case("run_url_and_service", ("runs", "show", "http://127.0.0.1:1/runs/a", "--service", "http://127.0.0.1:2"), 2),
    Case("token_without_a_service", ("runs", "show", "alpha", "--token-file", "token"), 2, known_runs),
    Case("token_file_missing", ("runs", "show", "a", "--service", "http://127.0.0.1:1", "--token-file", "no"), 2),
    Case(
        "token_file_empty",
        ("runs", "show", "a", "--service", "http://127.0.0.1:1", "--token-file", "token"),
        2,
        file("token", b"\n"),
    ),
    Case("pause_of_a_directory", ("runs", "pause", "alpha"), 2, known_runs),
    Case("service_without_a_database", ("gepa", "service"), 2),
    Case("service_database_nowhere", ("gepa", "service", "--db", "no/where.sqlite"), 2),
    Case("service_root_nowhere", ("gepa", "service", "--db", "s.sqlite", "--config-root", "nowhere"), 2),
    Case("service_no_workers", ("gepa", "service", "--db", "s.sqlite", "--workers", "0"), 2),
    # feeds
    Case("missing_feed", ("events", "replay", "--events", "nowhere.jsonl"), 2),
    Case("feed_is_no_feed", ("events", "replay", "--events", "gepa.toml"), 1),
    Case("feed_not_utf8", ("events", "replay", "--events", "bad.jsonl"), 1, file("bad.jsonl", b"\xff\xfe{}\n")),
    Case("feeds_differ", ("events", "compare", "--left", "a.jsonl", "--right", "b.jsonl"), 1, two_feeds),
    Case(
        "feeds_differ_as_json", ("events", "compare", "--left", "a.jsonl", "--right", "b.jsonl", "--json"), 1, two_feeds
    ),
    # workspaces
    Case("missing_workspace", ("workspace", "status", "--db", "nowhere.sqlite"), 2),
    Case("workspace_is_no_database", ("workspace", "status", "--db", "gepa.toml"), 1),
    Case("workspace_of_another_program", ("workspace", "status", "--db", "other.sqlite"), 1, other_program),
    Case("rebuild_of_another_program", ("workspace", "rebuild", "--db", "other.sqlite"), 1, other_program),
]


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[CommandResult, Path]]:
    """Run every case concurrently, because most of the time is spent loading the interpreter."""
    places = [tmp_path_factory.mktemp(case.name) for case in CASES]

    def refused(case: Case, place: Path) -> tuple[CommandResult, Path]:
        write_config(place, container=free_port(), proposer=free_port())
        case.prepare(place)
        return run_cli(*case.arguments, cwd=place), place

    with ThreadPoolExecutor(max_workers=4) as pool:
        return {case.name: ended for case, ended in zip(CASES, pool.map(refused, CASES, places), strict=True)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_input_is_refused(case: Case, refusals: dict[str, tuple[CommandResult, Path]]) -> None:
    ended, place = refusals[case.name]
    assert_snapshot(case.name, ended, place)
    assert ended.code == case.code
    told = ended.stdout + ended.stderr
    assert "Traceback" not in told
    assert '"hint"' in told or "hint: " in told


def test_a_container_with_another_contract_is_refused(tmp_path: Path) -> None:
    with serve_calls(lambda *_: (200, {"status": "ok", "service": "a shop"})) as url:
        write_config(tmp_path, container=int(url.rsplit(":", 1)[1]), proposer=free_port())
        ended = run_cli(*RUN, cwd=tmp_path)
    assert_snapshot("wrong_contract", ended, tmp_path)
    assert ended.code == 3


def test_a_run_that_another_process_holds_is_refused(place: Path) -> None:
    lock = place / "runs" / "router" / "run.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("pid 4711 since 2026-01-01T00:00:00.000Z\n")
        held.flush()
        ended = run_cli(*RUN, cwd=place)
    assert_snapshot("locked_run", ended, place)
    assert ended.code == 1
