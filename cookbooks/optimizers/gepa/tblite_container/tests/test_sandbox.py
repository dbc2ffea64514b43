"""The sandbox contains commands that try to escape."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tblite_container.jail import NAMESPACES, Limits
from tblite_container.sandbox import Case, Command, Outcome, Sandbox, SandboxError


def run(sandbox: Sandbox, script: str, seconds: float = 5.0) -> Outcome:
    return sandbox.run([Command(script, {"a.txt": "2\n1\n"}, seconds)])[0]


@pytest.fixture(params=["sandbox", "fenced", "limited"])
def either(request: pytest.FixtureRequest) -> Sandbox:
    made: Sandbox = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def jail(sandbox: Sandbox) -> Sandbox:
    if sandbox.kind != NAMESPACES:
        pytest.skip("this machine refuses namespaces")
    return sandbox


def test_a_command_reads_its_files_and_prints(either: Sandbox) -> None:
    outcome = run(either, "sort a.txt; pwd > where; ls")
    assert (outcome.stdout, outcome.stderr, outcome.succeeded) == ("1\n2\na.txt\nwhere\n", "", True)


def test_a_failure_in_the_middle_of_a_pipeline_is_reported(either: Sandbox) -> None:
    outcome = run(either, "cat missing | sort")
    assert outcome.status == 1
    assert outcome.stderr == "cat: missing: No such file or directory\n"


def test_messages_are_reproducible(either: Sandbox) -> None:
    first, second = (run(either, "cat /none $HOME/none; bash -c 'kill -9 $$' | cat; true") for _ in range(2))
    assert first == second
    assert "Killed" in first.stderr


def test_commands_of_one_batch_do_not_see_each_other(either: Sandbox) -> None:
    hidden = Command("echo x > left; (setsid sleep 60 > /dev/null 2>&1 &); ls")
    first, second = either.run([hidden, Command("ls -a . .. ../..; cat ../../*/*/left")])
    assert first.stdout == "left\n"
    assert "left" not in second.stdout
    assert not second.succeeded


def test_an_endless_loop_is_killed(either: Sandbox) -> None:
    for script in ("echo begun; while :; do :; done", "echo begun; sleep 600; echo ended"):
        outcome = run(either, script, 0.5)
        assert (outcome.problem, outcome.stdout, outcome.status) == ("it ran out of time", "begun\n", -signal.SIGKILL)


def test_cpu_time_is_limited(sandbox: Sandbox) -> None:
    outcome = run(sandbox, "while :; do :; done", 60)
    assert outcome.problem == ""
    assert outcome.status < 0


def test_processes_that_leave_their_group_are_killed(either: Sandbox) -> None:
    mark = f"{60 + os.getpid()}.{time.monotonic_ns()}"
    assert run(either, f"(setsid sleep {mark} > /dev/null 2>&1 &); echo done").stdout == "done\n"
    running = [entry.read_bytes() for entry in Path("/proc").glob("[0-9]*/cmdline") if _is_readable(entry)]
    assert not any(mark.encode() in line for line in running)


def _is_readable(entry: Path) -> bool:
    try:
        entry.read_bytes()
    except OSError:
        return False
    return True


def _descendants(ancestor: int) -> int:
    """Return the number of descendants of a process. Orphans in a jail stay below the warden."""
    parents: dict[int, int] = {}
    # A glob would look at the files itself, and fail for a process that ends meanwhile.
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                # The name, in brackets, may contain any character.
                stat = (process / "stat").read_text()
                parents[int(process.name)] = int(stat.rpartition(")")[2].split()[1])
    below = {ancestor}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return len(below) - 1


def test_a_fork_bomb_stays_small(either: Sandbox) -> None:
    most = 0
    is_over = threading.Event()

    def watch() -> None:
        nonlocal most
        while not is_over.is_set():
            most = max(most, _descendants(either._warden.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        outcome = run(either, "bomb() { bomb | bomb & }; bomb; sleep 0.5; echo survived", 3)
    finally:
        is_over.set()
        watcher.join()
    assert "Resource temporarily unavailable" in outcome.stderr
    assert most > 1
    if either.kind == NAMESPACES:
        # Some of them are the job's own watchers. Without a namespace, other processes of the user free slots as they
        # end, so the exact bound is unknown here.
        assert most <= Limits().processes + 8
    assert run(either, "echo well").stdout == "well\n"


def test_a_file_cannot_grow_large(either: Sandbox) -> None:
    outcome = run(either, "yes | head -c 100000000 > big; wc -c < big")
    assert int(outcome.stdout or 0) <= 8 << 20


def test_many_files_cannot_fill_the_disk(jail: Sandbox) -> None:
    outcome = run(jail, "for i in 1 2 3 4 5 6 7; do yes | head -c 8000000 > f$i; done; du -sm . | cut -f1")
    assert "No space left on device" in outcome.stderr
    assert int(outcome.stdout) <= 33


def test_memory_is_limited(either: Sandbox) -> None:
    outcome = run(either, """awk 'BEGIN { s = "x"; for (i = 0; i < 30; i++) s = s s; print length(s) }'""")
    assert (outcome.stdout, outcome.problem) == ("", "")
    assert "memory" in outcome.stderr


def test_too_much_output_is_cut(either: Sandbox) -> None:
    outcome = run(either, "yes")
    assert outcome.problem == "it wrote too much"
    assert len(outcome.stdout) <= 1 << 18


def test_there_is_no_network(jail: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcome = run(jail, f"echo hello > /dev/tcp/127.0.0.1/{port}")
    assert "Network is unreachable" in outcome.stderr
    assert outcome.status != 0


def test_nothing_outside_can_be_read_or_written(jail: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    paths = [secret, Path(__file__), Path("/etc/passwd"), Path("/proc/1/environ"), Path.home(), Path("/tmp")]  # noqa: S108
    for path in paths:
        outcome = run(jail, f"ls {path}; cat {path}; cd {path}; exit 1")
        assert outcome.stdout == "", path
    assert "Read-only file system" in run(jail, "touch /usr/bin/mine").stderr
    assert "Read-only file system" in run(jail, "touch /mine").stderr


def test_landlock_restricts_files_and_tcp(fenced: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for path in (secret, Path(__file__), Path("/etc/passwd"), Path("/proc/1/environ")):
        assert run(fenced, f"cat {path}; echo x > {path}").stdout == "", path
    assert secret.read_text() == "secret"
    with socket.create_server(("127.0.0.1", 0)) as server:
        outcome = run(fenced, f"echo hello > /dev/tcp/127.0.0.1/{server.getsockname()[1]}")
    assert "Permission denied" in outcome.stderr


def test_the_environment_is_not_revealed(either: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICY_API_KEY", "secret")
    with Sandbox(either.kind, with_checks=False) as fresh:
        told = run(fresh, "env | cut -d= -f1 | sort | xargs").stdout.split()
    assert set(told) <= {"HOME", "LC_ALL", "PATH", "PWD", "OLDPWD", "SHLVL", "TMPDIR", "TZ", "_"}


def test_no_privilege_can_be_regained(jail: Sandbox) -> None:
    assert run(jail, "id -u").stdout == "1000\n"
    for script in ("mount -t tmpfs x /cell", "chroot / true", "unshare -r true && unshare -rm umount -l /cell"):
        assert not run(jail, script).succeeded, script


def test_the_first_process_of_a_jail_cannot_be_killed_from_inside(jail: Sandbox) -> None:
    first, second = jail.run([Command("kill -9 1; kill -9 -1; kill -9 $$"), Command("echo well")])
    assert not first.succeeded
    assert second.stdout == "well\n"


def test_checks_are_real_pytest(either: Sandbox) -> None:
    right, wrong = Case("right", ["a,1\nb,2\na,3\n"], "2 a\n1 b\n"), Case("wrong", ["a,1\n"], "1 b\n")
    found = {(one.check, one.case): one for one in either.check("count_by_key", [right, wrong])}
    assert all(one.passed for (_, case), one in found.items() if case == "right")
    assert found["output_is_right", "wrong"].message == "the output differs from the right one"
    assert not found["there_is_one_line_for_each_key", "wrong"].passed


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="this is about root")
def test_root_that_cannot_become_another_user_has_no_sandbox() -> None:
    # Its processes are not counted, whatever the limit.
    tried = subprocess.run(["unshare", "-Ur", "true"], capture_output=True, text=True)  # noqa: S607 (found on the path)
    if tried.returncode:
        pytest.skip(f"this machine has no root of a namespace: {tried.stderr.strip()}")
    code = "from tblite_container.sandbox import Sandbox; Sandbox()"
    ended = subprocess.run(  # noqa: S603 (code of this test)
        ["unshare", "-Ur", sys.executable, "-c", code],  # noqa: S607 (found on the path)
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert "start it as a user other than root" in ended.stderr
    assert "this machine has no sandbox of the kind 'auto'" in ended.stderr


def test_no_process_or_file_remains() -> None:
    with Sandbox(with_checks=False) as made:
        place = Path(made._place)
        assert place.exists()
    assert not place.exists()


def test_the_last_error_of_the_warden_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "warden.py"
    broken.write_text("import sys\nprint('first', file=sys.stderr)\nraise RuntimeError('no room left')\n")
    monkeypatch.setattr("tblite_container.sandbox.WARDEN", broken)
    with pytest.raises(SandboxError, match=r"\(the warden: RuntimeError: no room left\)$"):
        Sandbox(with_checks=False)
