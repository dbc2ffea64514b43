"""Files of the service are readable by their owner only, and contain nothing of the service's environment."""

from __future__ import annotations

import base64
import json
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from cli.configs import small_config
from support.example import CONTAINER, Example, container_python
from support.http_server import free_port
from support.polling import WAIT_TIMEOUT_SECONDS
from support.service import Service, run_service

from service.routes import ROUTES

SECRETS = {
    "OPENAI_API_KEY": "canary/openai+7c1e",
    "ANTHROPIC_API_KEY": "canary/anthropic+7c1e",
    "AWS_SECRET_ACCESS_KEY": "canary/aws+7c1e",
    "DATABASE_URL": "postgres://me:canary+database+7c1e@db/x",
    "PLAIN_SETTING": "canary setting 7c1e",
    "REFLECTOR_KEY": "canary/reflector+7c1e",
}
"""Secrets in the environment of the service. The last one is really used: the proposer authenticates with it."""
OWN = ("gepa.toml", "service.log")
"""Files that the test itself has written."""

UNPACK = """
import sqlite3, sys, zstandard

def unpack(data):
    reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
    sys.stdout.buffer.write(reader.readall() + b"\\n")

for path in sys.argv[1:]:
    if path.endswith(".zst"):
        unpack(open(path, "rb").read())
        continue
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for row in database.execute(f'SELECT * FROM "{table}"'):
            for value in row:
                if isinstance(value, bytes) and value.startswith(zstandard.FRAME_HEADER):
                    unpack(value)
                else:
                    sys.stdout.buffer.write(str(value).encode() + b"\\n")
"""
"""Prints the compressed content of files. The Python of the containers has the decompressor."""


@dataclass(frozen=True)
class Done:
    """A service that has executed a run."""

    service: Service
    place: Path
    environment: Path
    run_id: str


def forms(text: str) -> set[bytes]:
    """Return a secret in every encoding in which it may be stored."""
    raw = text.encode()
    # Base64 depends on the alignment: the middle of each of the three encodings is the same in any text.
    shifted = {base64.b64encode(b"\0" * shift + raw)[4 if shift else 0 : -4] for shift in range(3)}
    quoted = {quote(text), quote(text, safe=""), json.dumps(text)[1:-1], text.replace("/", "\\/")}
    return {raw, raw.hex().encode(), base64.urlsafe_b64encode(raw)[:-4], *shifted, *(each.encode() for each in quoted)}


def leaks(content: bytes) -> list[str]:
    """Return the names of the variables whose values occur in the content."""
    return [name for name, value in SECRETS.items() if any(form in content for form in forms(value))]


@pytest.fixture(scope="module")
def done(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    """Yield a service with umask 0 that has executed a run with a managed container."""
    place, aside = tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("aside")
    environment, port = aside / "environment.json", free_port()
    first = aside / "first.py"
    first.write_text(
        "import json, os, sys\n"
        f"json.dump(dict(os.environ), open({str(environment)!r}, 'w'))\n"
        f"os.execv(sys.executable, [sys.executable, {str(CONTAINER)!r}, '--port', '{port}'])\n"
    )
    small_config(
        place,
        example,
        container__url=f"http://127.0.0.1:{port}",
        container__command=[container_python(), str(first)],
        proposer__api_key_env="REFLECTOR_KEY",
    )
    # The names that the tests use for a key.
    allowed = [
        part for name in ("REFLECTOR_KEY", "DATABASE_URL", "NOBODY_KNOWS_THIS") for part in ("--allow-key-env", name)
    ]
    with run_service(place, *allowed, env=SECRETS, umask=0) as service:
        run_id = service.run_id(Path("gepa.toml"), allow_unverified=True)
        service.wait(run_id, "completed")
        yield Done(service, place, environment, run_id)


def modes(place: Path) -> dict[str, str]:
    """Return the modes of all files and directories that the service has created."""
    found = {str(path.relative_to(place)): path.lstat() for path in place.rglob("*")}
    made = {name: status for name, status in found.items() if name not in OWN and not stat.S_ISLNK(status.st_mode)}
    return {name: stat.filemode(status.st_mode) for name, status in made.items()}


def test_files_are_accessible_to_their_owner_only(done: Done) -> None:
    found = modes(done.place)
    for name in ("service.sqlite", "service.sqlite-wal", "service.sqlite-shm", "service.sqlite.lock", "cache.sqlite"):
        assert found[name] == "-rw-------", name
    for name in ("workspace.sqlite", "events.jsonl", "result_manifest.json", "best_candidate.json", "run.lock"):
        assert found[f"runs/{done.run_id}/{name}"] == "-rw-------", name
    assert found["runs"] == found[f"runs/{done.run_id}"] == "drwx------"
    assert {mode for mode in found.values() if mode[0] == "d"} == {"drwx------"}
    assert {mode for mode in found.values() if mode[0] == "-"} == {"-rw-------"}


def test_the_environment_is_in_no_file(done: Done) -> None:
    files = [path for path in done.place.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert {str(path): found for path in files if (found := leaks(path.read_bytes()))} == {}
    # Transcripts and database rows are compressed, which would hide a secret.
    packed = [str(path) for path in files if path.suffix in (".sqlite", ".zst")]
    command = [container_python(), "-c", UNPACK, *packed]
    unpacked = subprocess.run(command, capture_output=True, check=True, timeout=WAIT_TIMEOUT_SECONDS).stdout  # noqa: S603 (a script of this test)
    assert unpacked.count(b"You route support tickets") > 10
    assert leaks(unpacked) == []


def test_the_environment_is_in_no_answer(done: Done) -> None:
    service, run_id = done.service, done.run_id
    candidates = [each["candidate_id"] for each in service.get(f"/runs/{run_id}/candidates")["items"]]
    rollouts = [each["rollout_id"] for each in service.get(f"/runs/{run_id}/rollouts")["items"]]
    names = [each["name"] for each in service.get(f"/runs/{run_id}/artifacts")["items"]]
    turns = [str(each["turn"]) for each in service.get(f"/runs/{run_id}/turns")["items"]]
    every = {"candidate_id": candidates, "rollout_id": rollouts, "name": names, "turn": turns, "other_run_id": [run_id]}
    paths = {
        route.path(run_id=run_id, **({} if last is None else {last: value}))
        for route in ROUTES
        if not route.mutates
        for last in [route.parameters[-1] if route.parameters[1:] else None]
        for value in (every[last] if last else [""])
    }
    assert len(paths) > 40
    for path in sorted(paths):
        for more in ({}, {"accept": "text/event-stream"}):
            reply = service.http.get(path, params={"include": "trace"} if "/rollouts/" in path else {}, headers=more)
            assert reply.status_code == 200, reply.text
            assert leaks(reply.content + str(reply.headers).encode()) == [], path


def test_the_environment_is_not_passed_on_to_the_container(done: Done) -> None:
    text = done.environment.read_text()
    assert leaks(text.encode()) == []
    assert set(SECRETS) & set(json.loads(text)) == set()
    assert "PATH" in json.loads(text)


def test_preflight_findings_contain_nothing_of_the_environment(done: Done, example: Example) -> None:
    service = done.service
    there = ["run.run_id=other", "container.command=[]", f"container.url={example.container_url}"]
    # A key, a variable that is not a key, and an unset variable.
    for name, is_set in (("REFLECTOR_KEY", True), ("DATABASE_URL", True), ("NOBODY_KNOWS_THIS", False)):
        body = {"config_path": "gepa.toml", "overrides": [*there, f"proposer.api_key_env={name}"]}
        reply = service.ask("POST", "/runs/preflight", body)
        assert reply.json()["ok"] == is_set, reply.text
        assert leaks(reply.content) == []
    assert leaks(service.stderr().encode()) == []
    assert leaks(Path(f"/proc/{service.process.pid}/cmdline").read_bytes()) == []
