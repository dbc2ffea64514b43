"""The warden: a long-lived process that starts jails and returns the results of the work in them.

`sandbox.py` starts it, and it listens on a socket that only its user can access. Each job runs in a process forked from
the warden, so that Python and pytest are loaded once, and in a separate jail. A jail runs either commands, which never
see a check, or checks, which execute nothing of what they check.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import re
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COOKBOOKS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(COOKBOOKS))

from tblite_container import landlock  # noqa: E402 (the path is set first)
from tblite_container.jail import KINDS, LANDLOCK, NAMESPACES, Limits, apply_landlock, confine, end_children  # noqa: E402

Json = dict[str, Any]

CHECKS = Path(__file__).resolve().parent / "checks"
SETUP_SECONDS = 10.0
MAX_ANSWER = 64 << 20
# pytest plugins that these checks do not need and that are slow to load.
_UNUSED = """
    cacheprovider debugging doctest faulthandler junitxml legacypath logging monkeypatch pastebin recwarn setuponly
    setupplan stepwise terminal threadexception tmpdir unittest unraisableexception warnings"""
UNUSED = _UNUSED.split()
SHELL = ["bash", "--noprofile", "--norc", "-c"]


def run_job(kind: str, place: Path, job: Json) -> Json:
    """Run a job in a separate jail, and kill all of it at its end or at its deadline."""
    limits = Limits(**job.get("limits", {}))
    reader, writer = os.pipe()
    work = place / "jail" if kind == NAMESPACES else Path(tempfile.mkdtemp(dir=place))
    is_check = job["do"] == "check"

    def tell(result: Json) -> None:
        with open(writer, "wb") as answer:  # noqa: PTH123 (a pipe)
            answer.write(json.dumps(result).encode())

    def body(cell: Path) -> None:
        os.close(reader)
        if job["do"] == "probe":
            tell({"done": is_counted(limits)})
        elif is_check:
            apply_landlock(kind, cell, visible)
            tell({"done": check(cell, job)})
        else:
            tell({"done": run_commands(kind, cell, job["commands"], limits)})

    visible = [CHECKS, *libraries()] if is_check else []
    keeper = confine(kind, work, visible, limits, body, lambda problem: tell({"error": problem}))
    os.close(writer)
    patience = job["seconds"] if is_check else sum(command["seconds"] for command in job["commands"])
    answer = _read_until(reader, time.monotonic() + patience + SETUP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(keeper, signal.SIGKILL)
    os.waitpid(keeper, 0)
    if kind != NAMESPACES:
        shutil.rmtree(work, ignore_errors=True)
    told: Json = json.loads(answer or b'{"error": "the jail did not answer"}')
    return told


def libraries() -> list[Path]:
    """Return the directories of the modules that pytest needs."""
    own = Path(__file__).resolve().parent
    paths = [Path(sys.prefix), Path(sys.base_prefix), *(Path(entry) for entry in sys.path if entry)]
    return [path for path in paths if path not in (own, COOKBOOKS)]


def _read_until(reader: int, deadline: float) -> bytes:
    """Read to the end; return nothing if the deadline passes first."""
    parts: list[bytes] = []
    with open(reader, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = pipe.read(1 << 20)
            if not part:
                return b"".join(parts)
            parts.append(part)
            if sum(map(len, parts)) > MAX_ANSWER:
                break
    return b""


def run_commands(kind: str, cell: Path, commands: list[Json], limits: Limits) -> list[Json]:
    """Run scripts one after the other."""
    return [run_command(kind, cell / str(number), command, limits) for number, command in enumerate(commands)]


def run_command(kind: str, base: Path, command: Json, limits: Limits) -> Json:
    """Run one script in a fresh directory with its files, and kill everything it started."""
    base.mkdir()
    places = {name: base / name for name in ("work", "home", "tmp")}
    for path in places.values():
        path.mkdir()
    for name, text in command["files"].items():
        (places["work"] / name).write_text(text, encoding="utf-8")
    # In a jail there is no other directory; without one, at least nothing of the caller's directory is revealed.
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
    environment |= {"HOME": str(places["home"]), "TMPDIR": str(places["tmp"])}
    script = f"ulimit -t {limits.cpu_seconds}; set -o pipefail\n{command['script']}\n"
    process = subprocess.Popen(  # noqa: S603 (isolated by the jail)
        [*SHELL, script],
        cwd=places["work"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # The process that watches a command stays outside its Landlock sandbox. A namespace needs none.
        preexec_fn=(lambda: apply_landlock(kind, base)) if kind == LANDLOCK else None,
    )
    output, problem = _collect(process, time.monotonic() + command["seconds"], command["output_bytes"])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    status = process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()
    end_children(kind)
    shutil.rmtree(base, ignore_errors=True)
    return {
        "status": status,
        "stdout": output["stdout"].decode("utf-8", "replace"),
        "stderr": _repeatable(output["stderr"].decode("utf-8", "replace"), base)[:500],
        "problem": problem,
    }


def _repeatable(errors: str, base: Path) -> str:
    """Return messages without parts that differ between runs: paths and process ids."""
    errors = errors.replace(f"{SHELL[0]}: line 2: ", "").replace(str(base), "")
    return re.sub(r"^ *\d+ (?=[A-Z][a-z]+)", "", errors, flags=re.MULTILINE)


def _collect(process: subprocess.Popen[bytes], deadline: float, most: int) -> tuple[dict[str, bytes], str]:
    """Read the output of a process until it ends, and return the problem if it has to be killed."""
    written = {"stdout": b"", "stderr": b""}
    with selectors.DefaultSelector() as selector:
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
            if stream:
                selector.register(stream, selectors.EVENT_READ, name)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return written, "it ran out of time"
            for key, _ in ready:
                part = os.read(key.fd, 1 << 16)
                if not part:
                    selector.unregister(key.fileobj)
                written[key.data] += part
                if len(written[key.data]) > most:
                    return {name: text[:most] for name, text in written.items()}, "it wrote too much"
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return written, "it ran out of time"
    return written, ""


def check(cell: Path, job: Json) -> list[Json]:
    """Check outputs with a file of checks, with pytest."""
    os.chdir(cell)
    os.environ.clear()
    os.environ.update({"HOME": str(cell), "TMPDIR": str(cell), "LC_ALL": "C"})
    tempfile.tempdir = None  # It was cached outside the jail.
    return judge(job["family"], job["cases"])


def judge(family: str, cases: list[Json]) -> list[Json]:
    """Run pytest in this process and return its verdicts."""
    import pytest

    from tblite_container.judge import CheckPlugin

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    plugin = CheckPlugin(cases)
    options = ["--import-mode=importlib", "-c", os.devnull, f"--rootdir={CHECKS}", f"--confcutdir={CHECKS}"]
    options += [f"-pno:{name}" for name in UNUSED]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = pytest.main([*options, str(CHECKS / f"check_{family}.py")], plugins=[plugin])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest could not run the checks of {family}: {said.getvalue()[-500:]}")
    return plugin.verdicts()


def choose(place: Path, wanted: str) -> str:
    """Return the best sandbox of this machine, or the wanted one, after trying it."""
    command = {"script": "printf well | cat", "files": {}, "seconds": 5, "output_bytes": 99}
    for kind in KINDS if wanted == "auto" else [wanted]:
        if kind != LANDLOCK or landlock.is_supported():
            answers = [run_job(kind, place, {"do": do, "commands": [command]}) for do in ("probe", "run")]
            if answers[0].get("done") and answers[1].get("done") and answers[1]["done"][0]["stdout"] == "well":
                return kind
    sys.exit(f"this machine has no sandbox of the kind {wanted!r}")


def is_counted(limits: Limits) -> bool:
    """Return whether process limits work here.

    They never do for root, so a sandbox that cannot stop being root is refused.
    """
    children: list[int] = []
    try:
        # Without a namespace other processes of the user count too, and some may end meanwhile.
        for _ in range(2 * limits.processes):
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
            children.append(child)
    except BlockingIOError:
        return True
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return False


def serve(place: Path, kind: str) -> None:
    """Serve jobs, each in a forked process, until standard input is closed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place / "warden"))
    listener.listen(128)
    sys.stdout.write(f"{kind}\n")
    sys.stdout.flush()
    # The kernel reaps the processes of jobs.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            sys.stdin.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            answer_job(connection, place, kind)
        connection.close()


def answer_job(connection: socket.socket, place: Path, kind: str) -> None:
    """Run the job of a connection in a forked process."""
    try:
        with connection, connection.makefile("rwb") as stream:
            job = json.loads(stream.readline())
            stream.write(json.dumps(run_job(kind, place, job)).encode())
    finally:
        os._exit(0)


def main() -> None:
    """Serve in the given directory, with the wanted sandbox and preloaded modules."""
    place, wanted, warm = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    (place / "jail").mkdir()
    if warm == "pytest":
        # Modules that pytest loads here need not be loaded again after a fork.
        judge("count_by_key", [{"name": "warm", "inputs": [""], "output": ""}])
    gc.disable()
    gc.freeze()
    try:
        serve(place, choose(place, wanted))
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
