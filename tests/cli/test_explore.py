"""Commands that show a run as a whole, and commands that change the runs of a service."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.example import Example
from support.service import Service, run_service
from support.stand_in import StandInService, serve_directory, serve_stand_in

from cli.commands import assert_snapshot, run_cli
from cli.configs import small_config
from synth_optimizers.cli.explore import _candidate_lines


@pytest.fixture(scope="module")
def finished(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a completed run; tests must not change it."""
    place = tmp_path_factory.mktemp("explored")
    small_config(place, example, gepa__search="sprint")
    assert run_cli("gepa", "run", "--config", "gepa.toml", "--quiet", cwd=place).code == 0
    return place


@pytest.fixture(scope="module")
def stand_in(finished: Path) -> Iterator[StandInService]:
    """Yield a stand-in service that serves the same run."""
    with serve_stand_in() as service:
        serve_directory(service, finished / "runs" / "router")
        yield service


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a real service."""
    with run_service(tmp_path_factory.mktemp("queue")) as running:
        yield running


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("runs_lineage", ("runs", "lineage", "router")),
        ("runs_rows", ("runs", "rows", "router")),
        ("runs_rows_heldout", ("runs", "rows", "latest", "--split", "heldout", "--order", "id")),
        ("runs_rows_bad_metric", ("runs", "rows", "router", "--metric", "speed")),
        ("runs_compare", ("runs", "compare", "router")),
        ("runs_compare_unknown_candidate", ("runs", "compare", "router", "--candidate", "gepa_nobody")),
        ("runs_compare_candidates", ("runs", "compare", "router", "--other-candidate", "gepa_7b589fd02b8e")),
        ("runs_transcript_unknown_turn", ("runs", "transcript", "router", "99")),
        ("runs_lineage_unknown_run", ("runs", "lineage", "nobody")),
    ],
)
def test_a_command_prints_its_snapshot(name: str, arguments: tuple[str, ...], finished: Path) -> None:
    ended = run_cli(*arguments, cwd=finished)
    assert_snapshot(name, ended, finished)
    # The texts of candidates have the lines that their authors wrote.
    assert all(len(line) <= 80 for line in ended.stdout.partition("\n# ")[0].splitlines())


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "lineage", "RUN"),
        ("runs", "lineage", "RUN", "--json"),
        ("runs", "rows", "RUN", "--all"),
        ("runs", "rows", "RUN", "--json", "--order", "gain"),
        ("runs", "transcript", "RUN"),
        ("runs", "transcript", "RUN", "1"),
        ("runs", "transcript", "RUN", "2", "--json"),
        ("runs", "compare", "RUN", "RUN"),
        ("runs", "compare", "RUN", "--json"),
    ],
    ids=" ".join,
)
def test_a_run_of_a_service_is_shown_like_one_of_a_directory(
    arguments: tuple[str, ...], finished: Path, stand_in: StandInService
) -> None:
    url = f"{stand_in.address}/runs/router"
    local = run_cli(*("router" if word == "RUN" else word for word in arguments), cwd=finished)
    remote = run_cli(*(url if word == "RUN" else word for word in arguments), cwd=finished)
    assert (local.code, local.stderr) == (0, "")
    assert (remote.code, remote.stdout, remote.stderr) == (0, local.stdout, "")


def test_turns_are_listed_with_the_outcomes_of_their_proposals(finished: Path) -> None:
    lines = run_cli("runs", "transcript", "router", cwd=finished).stdout.splitlines()
    assert lines[0].split() == ["turn", "gen", "status", "model", "tokens", "cost", "time", "proposals"]
    # The number of tokens depends on the addresses in the brief.
    assert [line.split()[:4] + line.split()[-2:] for line in lines[1:]] == [
        [str(turn), str(turn - 1), "completed", "offline-reflector", "2", "registered"] for turn in (1, 2)
    ]
    assert max(map(len, lines)) <= 80


def test_a_transcript_shows_what_the_proposer_saw_and_wrote(finished: Path) -> None:
    ended = run_cli("runs", "transcript", "router", "1", cwd=finished)
    assert ended.code == 0
    assert "== shown: user" in ended.stdout
    assert "== answered: assistant" in ended.stdout
    fate = r"^proposal    0 registered gepa_\w+, (accepted|superseded|rejected \w+)"
    assert re.search(fate, ended.stdout, re.MULTILINE)


def test_a_damaged_transcript_is_named_and_the_rest_is_shown(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True, symlinks=True)
    first, second = sorted((tmp_path / "runs/router/proposer_transcripts").iterdir())
    first.write_bytes(b"no transcript")
    second.unlink()
    damaged, missing = (run_cli("runs", "transcript", "router", turn, cwd=tmp_path) for turn in ("1", "2"))
    assert (damaged.code, missing.code) == (0, 0)
    assert "is damaged" in damaged.stdout
    assert "has no transcript of this turn" in missing.stdout
    assert "proposal    0 registered gepa_" in missing.stdout


def test_a_damaged_workspace_is_an_error_with_a_hint(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True, symlinks=True)
    (tmp_path / "runs/router/workspace.sqlite").write_bytes(b"no database" * 100)
    for command in ("lineage", "rows", "transcript", "compare"):
        ended = run_cli("runs", command, "router", "--json", cwd=tmp_path)
        assert ended.code == 1
        error = json.loads(ended.stdout)["error"]
        assert (error["code"], bool(error["hint"])) == ("synth_optimizer_sqlite_error", True)


def test_a_hostile_reason_is_visible_and_a_deep_tree_stays_within_the_width() -> None:
    known = {
        "candidate_id": "gepa_1",
        "is_best": False,
        "on_frontier": True,
        "train_score": {"mean": 0.5},
        "heldout_score": None,
        "operation": "merge",
        "parent_ids": ["gepa_2", "gepa_3"],
        "sprint": None,
        "status": "rejected_minibatch",
        "reason": "worse on \x1b[31mrow\u202e " + "x" * 30 + " again" * 40,
    }
    lines = _candidate_lines(known, 5000, 80)
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)
    assert "\u202e" not in "".join(lines)
    assert lines[0].startswith("+ ")
    assert "merge of gepa_2 and gepa_3" in " ".join(" ".join(lines).split())


def test_runs_of_a_directory_and_of_a_service_are_not_compared(finished: Path, stand_in: StandInService) -> None:
    ended = run_cli("runs", "compare", "router", f"{stand_in.address}/runs/router", cwd=finished)
    assert (ended.code, ended.stdout) == (2, "")
    assert "hint: Name two directories, or two runs of the same service." in ended.stderr


def test_a_run_is_submitted_listed_and_pruned(queue: Service, example: Example, tmp_path: Path) -> None:
    small_config(tmp_path, example, run__output_dir=str(tmp_path / "runs"))
    submit = ("runs", "submit", "--config", "gepa.toml", "--service", queue.url)
    ended = run_cli(*submit, "--set", "run.run_id=sent", "--idempotency-key", "k1", cwd=tmp_path)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout.startswith("run         sent ")
    again = run_cli(*submit, "--set", "run.run_id=sent", "--idempotency-key", "k1", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["replayed"] is True
    queue.wait("sent", "completed")
    listed = run_cli("runs", "prune", "--service", queue.url, cwd=tmp_path)
    assert (listed.code, listed.stdout, listed.stderr) == (0, "sent\n", "1 run would be deleted; add --yes\n")
    done = run_cli("runs", "prune", "--service", queue.url, "--status", "completed", "--yes", "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == {"dry_run": False, "not_pruned": [], "run_ids": ["sent"]}
    assert queue.ask("GET", "/runs/sent").status_code == 404
    wrong = run_cli("runs", "prune", "--service", queue.url, "--older-than", "yesterday", cwd=tmp_path)
    assert wrong.code == 2
    assert "hint: " in wrong.stderr


def test_a_run_of_a_service_is_stopped_and_deleted(queue: Service, example: Example, tmp_path: Path) -> None:
    small_config(tmp_path, example, run__output_dir=str(tmp_path / "runs"))
    options = ("--service", queue.url)
    waits = ("--set", "run.run_id=waits", "--no-start", "--allow-unverified")
    assert run_cli("runs", "submit", "--config", "gepa.toml", *waits, *options, cwd=tmp_path).code == 0
    refused = run_cli("runs", "delete", "waits", "--yes", *options, cwd=tmp_path)
    assert (refused.code, "only an ended run can be deleted" in refused.stderr) == (2, True)
    stopped = json.loads(run_cli("runs", "stop", "waits", "--json", *options, cwd=tmp_path).stdout)
    assert stopped["run_id"] == "waits"
    run_cli("runs", "cancel", "waits", *options, cwd=tmp_path)
    queue.wait("waits")
    gone = run_cli("runs", "delete", "waits", "--yes", "--json", *options, cwd=tmp_path)
    assert json.loads(gone.stdout) == {"deleted": True, "run_id": "waits"}
    assert queue.ask("GET", "/runs/waits").status_code == 404


def test_a_run_directory_is_deleted_only_when_confirmed(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True, symlinks=True)
    unconfirmed = run_cli("runs", "delete", "router", cwd=tmp_path)
    assert unconfirmed.code != 0
    assert (tmp_path / "runs/router/workspace.sqlite").exists()
    done = run_cli("runs", "delete", "latest", "--yes", cwd=tmp_path)
    assert (done.code, done.stdout) == (0, "deleted router\n")
    assert not (tmp_path / "runs/router").exists()
    assert not (tmp_path / "runs/latest").is_symlink()
    assert run_cli("runs", "stop", "router", cwd=tmp_path).code == 2


def test_a_config_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    ended = run_cli("runs", "submit", "--config", "none.toml", "--service", "http://127.0.0.1:1", cwd=tmp_path)
    assert (ended.code, ended.stderr.startswith("error[usage_error]: --config none.toml")) == (2, True)
