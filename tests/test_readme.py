"""The examples of the README run as printed."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shared.launch import run_server
from shared.with_servers import reflector_of
from support.example import EXAMPLE, ROOT, Example
from support.markdown import blocks, lines, run_words
from support.service import Service, run_service

from synth_optimizers import GepaConfig, GepaRun
from synth_optimizers._synth_optimizers import config_overrides
from synth_optimizers.cli.new_task import PROMPT, example_rows
from synth_optimizers.cli.options import LOG_VARIABLE

README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8879"
"""The address of the service in the README."""


@pytest.fixture(scope="module")
def place(ticket_router: Example, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the README's configuration for the running servers."""
    place = tmp_path_factory.mktemp("readme")
    text = blocks(README, "toml")[0].replace("http://127.0.0.1:9100", ticket_router.container_url)
    text = text.replace("http://127.0.0.1:9101/v1", ticket_router.reflector_url)
    (place / "gepa.toml").write_text(text, encoding="utf-8")
    (place / "evals.py").write_text(blocks(README, "python")[0], encoding="utf-8")
    rows = [",".join(row) for row in example_rows()]
    (place / "rows.csv").write_text("\n".join(["message,label", *rows]) + "\n", encoding="utf-8")
    (place / "prompt.txt").write_text(PROMPT, encoding="utf-8")
    return place


@pytest.fixture(autouse=True)
def proposer(spam_reflector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first command find a proposer, as with the settings of a user."""
    monkeypatch.setenv("OPENAI_BASE_URL", spam_reflector)


@pytest.fixture(scope="module")
def spam_reflector() -> Iterator[str]:
    """Serve a reflector that knows the task of the first section."""
    with run_server(sys.executable, *reflector_of("template"), "--port", "0") as url:
        yield url


@pytest.fixture(scope="module")
def service(place: Path) -> Iterator[Service]:
    """Yield the service that the README starts; only its port differs."""
    (line,) = [line for line in lines(README, "sh") if " gepa service " in line]
    options = shlex.split(line)[3:]
    assert options[:4] == ["--db", "service.sqlite", "--bind", ADDRESS.removeprefix("http://")]
    with run_service(place, *options[4:]) as service:
        yield service


def with_model(text: str) -> str:
    """Replace the model that a user names."""
    return text.replace("MODEL", "offline-reflector")


def run(line: str, place: Path) -> str:
    """Run a line of the README, which must succeed, and return its output."""
    ended = run_words(shlex.split(with_model(line), comments=True), place)
    assert ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("code", blocks(README, "python"))
def test_python_blocks_run(code: str, place: Path, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    exec(compile(with_model(code.replace(ADDRESS, service.url)), "README.md", "exec"), {})  # noqa: S102 (code of our own README)


def test_the_commands_run(place: Path) -> None:
    commands = [line for line in lines(README, "sh") if line.startswith("synth-optimizers ") and "8879" not in line]
    assert len(commands) > 5
    for command in commands:
        run(command, place)


def test_the_service_commands_run(place: Path, service: Service) -> None:
    commands = [line for line in lines(README, "sh") if ADDRESS in line]
    assert len(commands) > 5
    told = {}
    for command in commands:
        # curl exits with 0 even for an HTTP error.
        strict = command.replace("curl ", "curl --fail-with-body --silent ", 1).replace(ADDRESS, service.url)
        told[command] = run(strict, place)
    answers = iter(told.values())
    assert json.loads(next(answers))["status"] == "ok"
    assert json.loads(next(answers))["request"]["status"] == "queued"
    assert json.loads(next(answers))["run_request_status_counts"]
    assert next(answers).endswith('event: end\ndata: {"status":"completed"}\n\n')
    assert json.loads(next(answers))["payload"]["router_prompt"]
    assert json.loads(next(answers)) == {"recovered_run_requests": []}


def test_every_other_command_is_a_target_of_make() -> None:
    others = [line for line in lines(README, "sh") if not line.startswith(("synth-optimizers ", "curl "))]
    install, *commands = [shlex.split(line, comments=True) for line in others]
    # `make wheel` installs the wheel and imports it.
    assert install == ["pip", "install", "dist/synth_optimizers-*.whl"]
    assert commands == [["make", "quickstart"], ["make", "test"]]
    for target in [*(target for _, target in commands), "wheel"]:
        subprocess.run(["make", "--dry-run", "--directory", ROOT, target], check=True, capture_output=True)  # noqa: S603, S607


def test_every_block_is_tested() -> None:
    languages = re.findall(r"^```(.*)$", README, flags=re.MULTILINE)
    assert set(languages) == {"", "toml", "sh", "python"}
    assert len(blocks(README, "toml")) == 1


def test_the_configuration_matches_the_example(tmp_path: Path) -> None:
    (tmp_path / "gepa.toml").write_text(blocks(README, "toml")[0], encoding="utf-8")

    def values(path: Path) -> dict[str, object]:
        known = {value.path: value.value for value in GepaConfig.from_toml(path).explain()}
        return {name: str(value).replace(str(path.parent), "") for name, value in known.items()}

    assert values(tmp_path / "gepa.toml") == values(EXAMPLE / "gepa.toml")


def test_the_chart_matches_the_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    result = GepaRun.from_toml("gepa.toml").execute()
    assert Path(result.score_chart_path).read_text() == (ROOT / "docs" / "run.svg").read_text()


def test_the_readme_has_no_broken_link() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).is_file(), target


def test_the_listed_environment_variables_are_those_that_are_read() -> None:
    read = {row["variable"] for row in config_overrides()}
    assert set(re.findall(r"`(SYNTH_OPTIMIZERS_\w+)`", README)) == {*read, LOG_VARIABLE}
