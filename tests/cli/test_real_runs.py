"""Every command on real runs of the example."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sqlite3
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.example import Example

from cli.commands import assert_snapshot, command, environment, run_cli
from cli.configs import small_config

RUN = ("gepa", "run", "--config", "gepa.toml")


@pytest.fixture(scope="module")
def finished(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a completed run; tests must not change it."""
    place = tmp_path_factory.mktemp("finished")
    small_config(place, example)
    ended = run_cli(*RUN, cwd=place)
    assert ended.code == 0, ended.stderr
    return place


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of the completed run that a test may change."""
    return Path(shutil.copytree(finished, tmp_path, dirs_exist_ok=True, symlinks=True))


def test_a_run_prints_its_progress_and_the_path_of_its_results(example: Example, tmp_path: Path) -> None:
    small_config(tmp_path, example)
    ended = run_cli(*RUN, cwd=tmp_path)
    assert_snapshot("run", ended, tmp_path)
    assert ended.stdout == f"artifacts: {tmp_path}/runs/router\n"


def test_json_prints_the_result_and_quiet_prints_nothing_else(example: Example, tmp_path: Path) -> None:
    small_config(tmp_path, example)
    ended = run_cli(*RUN, "--json", "--quiet", cwd=tmp_path)
    assert (ended.code, ended.stderr) == (0, "")
    result = json.loads(ended.stdout)
    assert list(result) == sorted(result)
    assert result["run_id"] == "router"
    assert result["best_candidate"]["payload"]["router_prompt"].startswith("You route")
    manifest = json.loads((tmp_path / "runs/router/result_manifest.json").read_text())
    assert {name: manifest.get(name) for name in result if name != "scores"} | {"scores": result["scores"]} == result
    assert result["failure"] is None


def test_a_readonly_run_repeats_a_run_from_its_cache(copied: Path, example: Example) -> None:
    small_config(copied, example, run__run_id="again", cache__mode="readonly")
    before = len(example.rollouts())
    assert run_cli(*RUN, "--quiet", cwd=copied).code == 0
    assert len(example.rollouts()) == before
    feeds = [f"runs/{run}/events.normalized.jsonl" for run in ("router", "again")]
    ended = run_cli("events", "compare", "--left", feeds[0], "--right", feeds[1], cwd=copied)
    assert (ended.code, ended.stdout) == (0, "normalized event feeds match\n")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("runs_list", ("runs", "list")),
        ("runs_show", ("runs", "show", "router")),
        ("runs_best", ("runs", "best", "router")),
        ("runs_best_json", ("runs", "best", "runs/latest", "--json")),
        ("runs_best_bad_field", ("runs", "best", "router", "--field", "router_promt")),
        ("runs_diff", ("runs", "diff", "router")),
        ("runs_diff_one_candidate", ("runs", "diff", "router", "gepa_1b7717a6cd3d")),
        ("runs_diff_unknown_candidate", ("runs", "diff", "router", "gepa_1b7717a6cd3e", "gepa_1b7717a6cd3d")),
        ("runs_export_csv", ("runs", "export", "router", "--out", "-", "--format", "csv")),
        ("runs_watch", ("runs", "watch", "router")),
        ("runs_cancel", ("runs", "cancel", "router")),
        ("events_replay_normalized", ("events", "replay", "--events", "runs/router/events.normalized.jsonl")),
        ("workspace_check", ("workspace", "rebuild", "--db", "runs/router/workspace.sqlite", "--check")),
    ],
)
def test_a_command_on_a_finished_run_prints_its_snapshot(name: str, arguments: tuple[str, ...], finished: Path) -> None:
    assert_snapshot(name, run_cli(*arguments, cwd=finished), finished)


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "list"),
        ("runs", "show", "router"),
        ("runs", "diff", "router"),
        ("runs", "watch", "router", "--quiet"),
        ("runs", "cancel", "router"),
        ("events", "replay", "--events", "runs/router/events.jsonl"),
        ("workspace", "status", "--db", "runs/router/workspace.sqlite"),
        ("workspace", "rebuild", "--db", "runs/router/workspace.sqlite", "--check"),
        ("gepa", "resume", "router", "--quiet"),
        ("gepa", "schema"),
        ("runs", "best", "rooter"),
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)
def test_json_is_one_document_with_sorted_keys(arguments: tuple[str, ...], finished: Path) -> None:
    ended = run_cli(*arguments, "--json", cwd=finished)
    document = json.loads(ended.stdout)
    assert list(document) == sorted(document)
    assert ended.stderr == ""


def test_events_replay_and_workspace_status_describe_the_run(finished: Path) -> None:
    story = run_cli("events", "replay", "--events", "runs/router/events.jsonl", cwd=finished)
    assert (story.code, story.stderr) == (0, "")
    assert story.stdout.startswith("run router at 20")
    assert "run completed with gepa_" in story.stdout
    health = run_cli("workspace", "status", "--db", "runs/router/workspace.sqlite", cwd=finished)
    assert (health.code, health.stderr) == (0, "")
    assert "state               completed\n" in health.stdout
    assert re.search(r"^ +\d+  candidates$", health.stdout, re.MULTILINE)
    assert "invariants          pass, 0 violated\n" in health.stdout


def test_runs_best_writes_the_whole_text_and_overwrites_no_file(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "best.txt"
    arguments = ("runs", "best", "router", "--field", "router_prompt", "--out", str(out))
    assert run_cli(*arguments, cwd=finished).code == 0
    payload = json.loads((finished / "runs/router/best_candidate.json").read_text())["payload"]
    assert out.read_text() == payload["router_prompt"]
    out.write_text("mine")
    refused = run_cli(*arguments, cwd=finished)
    assert (refused.code, out.read_text()) == (2, "mine")
    assert (
        refused.stderr == f"error[usage_error]: {out} exists\nhint: Name another file, or overwrite it with --force.\n"
    )
    assert run_cli(*arguments, "--force", cwd=finished).code == 0
    assert out.read_text() == payload["router_prompt"]
    assert [path.name for path in tmp_path.iterdir()] == ["best.txt"]


def test_an_export_has_the_same_bytes_each_time_and_no_cache(finished: Path, tmp_path: Path) -> None:
    for name in ("a.tar.gz", "b.tar.gz", "a.zip", "b.zip", "directory"):
        ended = run_cli("runs", "export", "router", "--out", str(tmp_path / name), cwd=finished)
        assert ended.code == 0, ended.stderr
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        names = archive.getnames()
    assert names == sorted(names)
    assert {"router/best_candidate.json", "router/events.jsonl", "router/workspace.sqlite"} <= set(names)
    assert not any("cache.sqlite" in name or "lock" in name for name in names)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == names
    files = sorted(
        f"router/{path.relative_to(tmp_path / 'directory')}" for path in (tmp_path / "directory").rglob("*.*")
    )
    assert files == names
    assert gzip.decompress((tmp_path / "a.tar.gz").read_bytes())


@pytest.mark.parametrize("out", ["run.rar", "run.7z", "run.tar", "run.tar.xz", "run.zpi", "run.tar.g", "RUN.TBZ2"])
def test_an_unknown_archive_suffix_is_refused(out: str, finished: Path) -> None:
    refused = run_cli("runs", "export", "router", "--out", out, cwd=finished)
    assert (refused.code, refused.stderr.splitlines()[0]) == (2, f"error[usage_error]: {out} has an unknown suffix")
    assert not (finished / out).exists()


def test_a_table_without_its_format_is_refused(finished: Path) -> None:
    refused = run_cli("runs", "export", "router", "--out", "run.csv", cwd=finished)
    assert refused.code == 2
    assert "hint: Add --format csv for the candidates alone.\n" in refused.stderr


@pytest.mark.parametrize("out", ["y.d", "router.v2", "router-1.5", "of.zip/", "there.rar"])
def test_a_directory_may_have_a_dot_in_its_name(out: str, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "there.rar").mkdir()
    ended = run_cli("runs", "export", "router", "--out", f"{tmp_path}/{out}", cwd=finished)
    assert ended.code == 0, ended.stderr
    assert (tmp_path / out / "best_candidate.json").is_file()


def test_an_export_has_the_same_bytes_after_workspace_status(copied: Path) -> None:
    db = "runs/router/workspace.sqlite"
    (copied / "runs/router/control.json").write_text("{}")
    exported = {}
    for name in ("a", "b"):
        for kind in ("tar.gz", "zip"):
            ended = run_cli("runs", "export", "router", "--out", f"{name}.{kind}", cwd=copied)
            assert ended.code == 0, ended.stderr
            exported[name, kind] = (copied / f"{name}.{kind}").read_bytes()
        assert run_cli("workspace", "status", "--db", db, cwd=copied).code == 0
        assert run_cli("workspace", "vacuum", "--db", db, cwd=copied).code == 0
        os.utime(copied / db)
    assert exported["a", "tar.gz"] == exported["b", "tar.gz"]
    assert exported["a", "zip"] == exported["b", "zip"]
    assert run_cli("runs", "export", "router", "--out", "unpacked", cwd=copied).code == 0
    assert not (copied / "unpacked/control.json").exists()
    health = run_cli("workspace", "status", "--db", "unpacked/workspace.sqlite", "--json", cwd=copied)
    assert json.loads(health.stdout)["workspace_invariant_report"]["violation_count"] == 0
    assert run_cli("workspace", "rebuild", "--db", "unpacked/workspace.sqlite", "--check", cwd=copied).code == 0


def test_candidates_are_exported_as_lines(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "candidates.jsonl"
    ended = run_cli("runs", "export", "router", "--out", str(out), "--format", "jsonl", cwd=finished)
    assert ended.code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows[0]["source"] == "seed"
    assert {row["candidate_id"] for row in rows} >= {rows[0]["candidate_id"]}


def test_a_workspace_is_rebuilt_from_its_log(copied: Path) -> None:

    db = copied / "runs/router/workspace.sqlite"
    with sqlite3.connect(db) as connection:
        connection.execute("UPDATE candidates SET status = 'registered'")
    differs = run_cli("workspace", "rebuild", "--db", str(db), "--check", cwd=copied)
    assert differs.code == 1
    assert f"synth-optimizers workspace rebuild --db {db}" in differs.stderr
    assert run_cli("workspace", "rebuild", "--db", str(db), cwd=copied).code == 0
    assert run_cli("workspace", "rebuild", "--db", str(db), "--check", cwd=copied).code == 0
    assert run_cli("workspace", "vacuum", "--db", str(db), cwd=copied).code == 0


def test_a_run_started_with_another_configuration_is_refused(copied: Path) -> None:
    ended = run_cli(*RUN, "--set", "gepa.minibatch_size=3", cwd=copied)
    assert_snapshot("another_configuration", ended, copied)


def test_a_budget_that_does_not_cover_the_initial_candidate_is_refused(example: Example, tmp_path: Path) -> None:
    small_config(tmp_path, example, gepa__max_total_rollouts=3)
    ended = run_cli(*RUN, cwd=tmp_path)
    assert_snapshot("budget_too_small", ended, tmp_path)
    assert ended.code == 2


def test_a_missing_key_variable_is_refused(example: Example, tmp_path: Path) -> None:
    small_config(tmp_path, example, proposer__api_key_env="NO_SUCH_KEY")
    ended = run_cli(*RUN, cwd=tmp_path)
    assert_snapshot("missing_key_variable", ended, tmp_path)
    assert ended.code == 3


def test_an_unknown_field_of_the_program_is_refused(example: Example, tmp_path: Path) -> None:
    small_config(tmp_path, example, candidate__target_modules=["router_promt"])
    ended = run_cli(*RUN, cwd=tmp_path)
    assert_snapshot("unknown_module", ended, tmp_path)
    assert ended.code == 3


def test_a_damaged_run_does_not_hide_the_others(copied: Path) -> None:
    damaged = copied / "runs" / "damaged"
    damaged.mkdir()
    (damaged / "workspace.sqlite").write_text("no database" * 100)
    ended = run_cli("runs", "list", cwd=copied)
    assert ended.code == 0
    assert "router" in ended.stdout
    assert "warning: runs/damaged cannot be read: " in ended.stderr


def test_a_closed_stdout_is_not_an_error(finished: Path) -> None:
    writer = subprocess.Popen(  # noqa: S603 (the program under test)
        command("runs", "show", "router", "--json"),
        cwd=finished,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert writer.stdout is not None
    writer.stdout.close()
    assert writer.stderr is not None
    assert writer.stderr.read() == b""
    writer.stderr.close()
    assert writer.wait(60) == 0


def _damage_a_line(feed: bytes) -> bytes:
    lines = feed.splitlines(keepends=True)
    return b"".join([*lines[:5], b'{"sequence_number": 5, "type\n', *lines[6:]])


def _add_foreign_bytes(feed: bytes) -> bytes:
    lines = feed.splitlines(keepends=True)
    return b"".join([*lines[:5], b"\xff\xfe\x80" + lines[5], *lines[6:]])


def _run_ahead(feed: bytes) -> bytes:
    last = json.loads(feed.splitlines()[-1])
    ahead = [{**last, "sequence_number": last["sequence_number"] + step} for step in (1, 2)]
    return feed + b"".join(json.dumps(event).encode() + b"\n" for event in ahead)


@pytest.mark.parametrize("damage", [_damage_a_line, _add_foreign_bytes, _run_ahead])
def test_a_damaged_feed_is_repaired_and_not_read_before(damage: Callable[[bytes], bytes], copied: Path) -> None:
    feed = copied / "runs/router/events.jsonl"
    whole = feed.read_bytes()
    feed.write_bytes(damage(whole))
    watched = run_cli("runs", "watch", "router", cwd=copied)
    assert (watched.code, watched.stdout) == (0, "")
    assert "run         router completed in " in watched.stderr
    # Only a process that executes the run repairs its feed.
    assert feed.read_bytes() == damage(whole)
    ended = run_cli(*RUN, cwd=copied)
    assert (ended.code, ended.stdout) == (0, f"artifacts: {copied}/runs/router\n"), ended.stderr
    assert feed.read_bytes() == whole
