"""The page about containers: its commands, its requests and its script run as printed."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shared.acceptance import COOKBOOKS
from shared.launch import run_server
from shared.with_servers import reflector_of
from support.http_server import free_port
from support.markdown import blocks, lines
from test_cookbooks import run

from synth_optimizers.bridge import serve

PAGE = (COOKBOOKS / "BRING_YOUR_OWN_TASK.md").read_text(encoding="utf-8")
TEMPLATE = COOKBOOKS / "template_container"
ADDRESS = "http://127.0.0.1:9300"
"""The address of the container on the page."""


def commands() -> list[str]:
    """Return the commands of the page."""
    return lines(PAGE, "sh")


def copy_template(place: Path) -> Path:
    """Copy the template as a user does, and return the directory of the copy."""
    task = place / "my_task"
    shutil.copytree(TEMPLATE, task, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    return task


def user_environment() -> dict[str, str]:
    """Return the environment of a user, whose path has the programs of the package."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_the_template_is_short() -> None:
    assert len((TEMPLATE / "task.py").read_text(encoding="utf-8").splitlines()) <= 25


def test_rollouts_of_the_template_run_concurrently() -> None:
    # Each of two evaluations waits for the other.
    barrier = threading.Barrier(2, timeout=20)

    def evaluate(prompt: str, row: dict[str, str]) -> tuple[float, str]:
        assert prompt
        assert row["message"]
        barrier.wait()
        return 1.0, "Right."

    def ask(url: str, name: str) -> str:
        body = {"rollout_id": name, "candidate": {"prompt": "any"}, "task": {"task_id": "train:0"}}
        request = urllib.request.Request(  # noqa: S310 (a loopback address)
            f"{url}/rollouts", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310
            return str(json.load(reply)["status"])

    with (
        serve(evaluate, rows=str(TEMPLATE / "rows.csv"), texts={"prompt": "first"}) as url,
        ThreadPoolExecutor(2) as threads,
    ):
        assert list(threads.map(lambda name: ask(url, name), "ab")) == ["completed", "completed"]


def test_a_container_gives_the_replies_of_the_page(tmp_path: Path) -> None:
    (served,) = [line for line in commands() if line.startswith("synth-optimizers serve ")]
    asked = [line for line in commands() if line.startswith("curl ")]
    assert len(asked) == 5
    with subprocess.Popen(  # noqa: S603 (a command of our own page)
        shlex.split(served.replace("--port 9300", "--port 0")),
        cwd=copy_template(tmp_path),
        env=user_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            strict = [line.replace("curl ", "curl --fail --silent ").replace(ADDRESS, url) for line in asked]
            replies = [json.loads(run(*shlex.split(line))) for line in strict]
        finally:
            process.terminate()
    _, program, taskset, tasks, record = replies
    assert list(program["seed_candidate"]) == ["prompt"]
    assert {split: len(ids) for split, ids in taskset["splits"].items()} == {"train": 40, "test": 24}
    assert set(tasks["tasks"][0]) == {"task_id", "split", "row_version", "message"}
    (shown,) = blocks(PAGE, "json")
    expected = json.loads(shown)
    found = {key: record[key] for key in expected}
    found["reward_info"] = {key: found["reward_info"][key] for key in expected["reward_info"]}
    assert found == expected


def test_the_commands_of_the_page_improve_the_prompt(tmp_path: Path) -> None:
    task = copy_template(tmp_path)
    with run_server(sys.executable, *reflector_of("template"), "--port", "0") as reflector:
        config = (task / "gepa.toml").read_text(encoding="utf-8").replace("http://127.0.0.1:9301/v1", reflector)
        (task / "gepa.toml").write_text(config.replace("9300", str(free_port())), encoding="utf-8")
        told = {}
        for command in [line for line in commands() if re.match("synth-optimizers (?!serve )", line)]:
            ended = subprocess.run(  # noqa: S603 (commands of our own page)
                shlex.split(command), cwd=task, env=user_environment(), capture_output=True, text=True, timeout=120
            )
            assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
            told[" ".join(command.split()[1:3])] = ended.stdout + ended.stderr
    assert list(told) == ["gepa check", "gepa run", "runs diff"]
    for line in re.findall(r"^held-out .*\n(?: .*\n)+", PAGE, flags=re.MULTILINE)[0].splitlines():
        assert line in told["gepa run"]
    assert "\ncost        $0.0000\n" in told["gepa run"]


def test_the_script_gives_the_same_result(tmp_path: Path) -> None:
    script = COOKBOOKS / "bring_your_own_task.py"
    told = run(sys.executable, script, "--runs", tmp_path)
    assert "held-out: seed 0.542" in told
    assert "best 0.958" in told
    assert "generation 5 done" in told
    assert "Spam words: winner, cheap" in told


def test_every_script_on_the_page_exists() -> None:
    scripts = {word for command in commands() for word in command.split() if word.endswith(".py")}
    assert scripts
    assert all((COOKBOOKS.parents[2] / script).is_file() for script in scripts)
