"""The page for new users: its commands and its script run as printed."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from shared.acceptance import COOKBOOKS
from shared.launch import run_server
from shared.with_servers import reflector_of
from support.http_server import free_port
from support.markdown import lines
from test_cookbooks import cookbook_python, run

PAGE = (COOKBOOKS / "BRING_YOUR_OWN_TASK.md").read_text(encoding="utf-8")
TEMPLATE = COOKBOOKS / "template_container"
# Each of two evaluations waits for the other, so both must run concurrently.
TWO_AT_ONCE = """
import asyncio, threading
import container, httpx

barrier = threading.Barrier(2, timeout=20)

def evaluate(prompt, row):
    barrier.wait()
    return 1.0, "Right."

async def main():
    container.evaluate = evaluate
    transport = httpx.ASGITransport(container.container.fastapi())
    async with httpx.AsyncClient(transport=transport, base_url="http://task") as client:
        asked = [{"rollout_id": name, "submission_mode": "sync", "candidate": {"prompt": "any"}} for name in "ab"]
        posts = [client.post("/rollouts", json=one | {"task": {"task_id": "train:0"}}) for one in asked]
        replies = await asyncio.gather(*posts)
    print([reply.status_code for reply in replies])

asyncio.run(main())
"""


def commands() -> list[str]:
    """Return the commands of the page."""
    return lines(PAGE, "sh")


def test_the_template_is_short() -> None:
    assert len((TEMPLATE / "container.py").read_text(encoding="utf-8").splitlines()) <= 60


def test_rollouts_of_the_template_run_concurrently() -> None:
    ended = subprocess.run(  # noqa: S603 (code of this test)
        [cookbook_python(), "-B", "-c", TWO_AT_ONCE], cwd=TEMPLATE, capture_output=True, text=True, timeout=120
    )
    assert ended.stdout == "[200, 200]\n", ended.stderr


def test_the_commands_of_the_page_improve_the_prompt(tmp_path: Path) -> None:
    task = tmp_path / "my_task"
    shutil.copytree(TEMPLATE, task, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    # The programs of a user's single environment are in two environments here.
    path = os.pathsep.join(str(Path(python).parent) for python in (cookbook_python(), sys.executable))
    environ = os.environ | {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    with run_server(cookbook_python(), *reflector_of("template"), "--port", "0") as reflector:
        config = (task / "gepa.toml").read_text(encoding="utf-8").replace("http://127.0.0.1:9301/v1", reflector)
        (task / "gepa.toml").write_text(config.replace("9300", str(free_port())), encoding="utf-8")
        told = {}
        for command in [command for command in commands() if command.startswith("synth-optimizers ")]:
            ended = subprocess.run(  # noqa: S603 (commands of our own page)
                shlex.split(command), cwd=task, env=environ, capture_output=True, text=True, timeout=120
            )
            assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
            told[" ".join(command.split()[1:3])] = ended.stdout + ended.stderr
    assert list(told) == ["gepa check", "gepa run", "runs diff"]
    for line in re.findall(r"^held-out .*\n(?: .*\n)+", PAGE, flags=re.MULTILINE)[0].splitlines():
        assert line in told["gepa run"]
    assert "\ncost        $0.0000\n" in told["gepa run"]


def test_the_script_gives_the_same_result(tmp_path: Path) -> None:
    script = COOKBOOKS / "bring_your_own_task.py"
    told = run(sys.executable, script, "--python", cookbook_python(), "--runs", tmp_path)
    assert "held-out: seed 0.542" in told
    assert "best 0.917" in told
    assert "generation 5 done" in told
    assert "Spam words: winner, bonus" in told


def test_every_script_on_the_page_exists() -> None:
    scripts = {word for command in commands() for word in command.split() if word.endswith(".py")}
    assert scripts
    assert all((COOKBOOKS.parents[2] / script).is_file() for script in scripts)
