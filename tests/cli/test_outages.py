"""An outage of the container interrupts a run after its patience, and `gepa resume` continues it."""

import json
import subprocess
import sys
from pathlib import Path

from shared.launch import run_server
from shared.with_servers import reflector_of
from support.http_server import free_port
from support.polling import wait_until

from cli.commands import command, environment
from cli.test_functions import run


def serve(folder: Path, port: int) -> subprocess.Popen[str]:
    """Serve the task, and wait until it listens."""
    options = ("--rows", "rows.csv", "--text", "prompt=@prompt.txt", "--port", str(port), "--state", "state.sqlite")
    served = subprocess.Popen(  # noqa: S603 (our own command)
        command("serve", "task.py:evaluate", *options),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert served.stdout is not None
    assert f":{port}" in served.stdout.readline()
    return served


def end(served: subprocess.Popen[str]) -> None:
    """Kill the container by its own pid."""
    served.kill()
    served.wait()
    if served.stdout:
        served.stdout.close()


def test_resume_continues_a_run_that_an_outage_interrupted(tmp_path: Path) -> None:
    with run_server(sys.executable, *reflector_of("template"), "--port", "0") as reflector:
        assert run(tmp_path, "init", "--base-url", reflector, "--model", "offline-reflector").code == 0
        task = (tmp_path / "task.py").read_text()
        # The rollouts after the tenth wait until the container is killed.
        slow = "    import pathlib, time\n    calls = pathlib.Path('calls')\n    calls.open('a').write('.')\n"
        slow += "    while calls.stat().st_size > 10 and not pathlib.Path('go').exists():\n        time.sleep(0.01)\n"
        (tmp_path / "task.py").write_text(task.replace("    listed = ", slow + "    listed = ", 1))
        port = free_port()
        config = (tmp_path / "gepa.toml").read_text().splitlines()
        kept = [line for line in config if not line.startswith(("command", "url", "startup"))]
        text = "\n".join(kept).replace(
            "[container]", f'[container]\nurl = "http://127.0.0.1:{port}"\nconnect_retries = 0'
        )
        (tmp_path / "gepa.toml").write_text(f"[run]\nrun_id = 'out'\noutage_patience_seconds = 0\n{text}\n")
        served = serve(tmp_path, port)
        try:
            running = subprocess.Popen(  # noqa: S603 (our own command)
                command("gepa", "run", "--config", "gepa.toml", "--quiet"), cwd=tmp_path, env=environment()
            )
            wait_until(
                "the tenth rollout", lambda: (tmp_path / "calls").exists() and (tmp_path / "calls").stat().st_size > 10
            )
        finally:
            end(served)
        assert running.wait(60) == 3
        entry = json.loads((tmp_path / "runs/run_registry.jsonl").read_text().splitlines()[-1])
        assert entry["status"] == "interrupted"
        gone = run(tmp_path, "gepa", "resume", "runs/out")
        assert gone.code == 3
        assert f"127.0.0.1:{port}" in gone.stderr
        (tmp_path / "go").touch()
        # Scores of another function are not mixed with those of the run.
        function = (tmp_path / "task.py").read_text()
        (tmp_path / "task.py").write_text(f"{function}\n# another version\n")
        served = serve(tmp_path, port)
        try:
            refused = run(tmp_path, "gepa", "resume", "runs/out")
        finally:
            end(served)
        assert refused.code == 3
        assert "the container's program changed since the run started" in refused.stderr
        (tmp_path / "task.py").write_text(function)
        rows = (tmp_path / "rows.csv").read_text()
        for changed in (rows.replace("noon", "friday"), "\n".join(rows.splitlines()[:-3]) + "\n"):
            assert changed != rows
            (tmp_path / "rows.csv").write_text(changed)
            served = serve(tmp_path, port)
            try:
                refused = run(tmp_path, "gepa", "resume", "runs/out")
            finally:
                end(served)
            assert refused.code == 3
            assert "the container's rows changed since the run started" in refused.stderr
            assert "Restore the rows" in refused.stderr
        (tmp_path / "rows.csv").write_text(rows)
        served = serve(tmp_path, port)
        try:
            resumed = run(tmp_path, "gepa", "resume", "runs/out")
        finally:
            end(served)
    assert resumed.code == 0, resumed.stderr
    status = json.loads(run(tmp_path, "runs", "show", "out", "--json").stdout)
    assert status["state"] == "completed"
