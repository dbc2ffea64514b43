"""Log records: in `logging` for programs, on stderr for commands, and never with a secret."""

import json
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from cli.commands import environment, run_cli
from support.example import Example, example_config, serve_example

from synth_optimizers import GepaRun

SMALL: dict[str, object] = {"gepa__max_generations": 1, "gepa__max_total_rollouts": 120, "cache__mode": "off"}
CANARY = "canary-4f1d0a6b9c"


def test_a_run_logs_records_with_fields(example: Example, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = example_config(tmp_path, example, run__run_id="router", **SMALL)
    with caplog.at_level(logging.DEBUG, logger="synth_optimizers"):
        GepaRun.from_toml(config).execute()
    by_message = {record.getMessage(): record for record in caplog.records}
    assert {"run started", "rollout sent", "rollout answered", "proposer answered", "run ended"} <= set(by_message)
    ended, answered = by_message["run ended"], by_message["rollout answered"]
    assert (ended.name, ended.levelno) == ("synth_optimizers.runtime", logging.INFO)
    assert (ended.run_id, ended.status) == ("router", "completed")  # type: ignore[attr-defined]
    assert answered.fields.keys() >= {"run_id", "evaluation", "candidate", "stage", "call", "row", "attempt"}  # type: ignore[attr-defined]
    assert isinstance(answered.duration_ms, int)  # type: ignore[attr-defined]
    assert by_message["proposer answered"].generation == 0  # type: ignore[attr-defined]
    assert {record.threadName for record in caplog.records} == {"synth-optimizers-run"}
    assert [record.created for record in caplog.records] == sorted(record.created for record in caplog.records)


def test_records_below_the_level_of_their_logger_are_not_created(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    with serve_example(tmp_path_factory.mktemp("failing"), fail_every=40) as failing:
        # Server errors of the task are no overload by default.
        overload = {"gepa__pipeline__adaptive_rollout_concurrency__overload_status_codes": [500]}
        config = example_config(tmp_path, failing, run__run_id="router", **SMALL, **overload)
        GepaRun.from_toml(config).execute()
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert {record.getMessage() for record in caplog.records} == {
        "the container is overloaded; fewer concurrent rollouts"
    }
    assert {record.run_id for record in caplog.records} == {"router"}  # type: ignore[attr-defined]


def test_missing_and_raising_log_handlers_are_harmless(example: Example, tmp_path: Path) -> None:
    config = example_config(tmp_path, example, **SMALL)
    program = """
        import logging, sys
        from synth_optimizers import GepaRun
        class Broken(logging.Handler):
            def emit(self, record):
                raise RuntimeError("no room")
        if len(sys.argv) > 2:
            logging.getLogger("synth_optimizers").addHandler(Broken())
            logging.getLogger("synth_optimizers").setLevel(1)
        print(GepaRun.from_toml(sys.argv[1]).execute().status)
    """
    silent, broken = _python(program, str(config)), _python(program, str(config), "broken")
    assert (silent.stdout, silent.stderr, silent.returncode) == ("completed\n", "", 0)
    assert (broken.stdout, broken.returncode) == ("completed\n", 0)
    assert "RuntimeError: no room" in broken.stderr


def test_a_forked_child_logs_and_exits(example: Example, tmp_path: Path) -> None:
    config = example_config(tmp_path, example, **SMALL)
    program = """
        import logging, os, sys
        logging.basicConfig(level=logging.INFO, format="%(process)d %(message)s", stream=sys.stdout)
        from synth_optimizers import GepaRun
        GepaRun.from_toml(sys.argv[1], ["run.run_id='parent'"]).execute()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            GepaRun.from_toml(sys.argv[1], ["run.run_id='child'"]).execute()
            sys.exit(0)
        print("code", os.waitpid(child, 0)[1])
    """
    ended = _python(program, str(config))
    lines = ended.stdout.split("\n")
    ends = [line.split()[0] for line in lines if line.endswith("run ended")]
    assert len(set(ends)) == 2, ended.stdout + ended.stderr
    assert "code 0" in lines


def test_a_run_that_outlives_its_interpreter_does_not_log_into_it(tmp_path: Path) -> None:
    with serve_example(tmp_path, delay=0.2) as slow:
        config = example_config(tmp_path, slow, **SMALL)
        program = """
            import logging, sys, threading
            logging.basicConfig(level=1, filename=sys.argv[2])
            from synth_optimizers import GepaRun
            sent = threading.Event()
            class Notice(logging.Handler):
                def emit(self, record):
                    if record.getMessage() == "rollout sent":
                        sent.set()
            logging.getLogger().addHandler(Notice())
            handle = GepaRun.from_toml(sys.argv[1]).start()
            assert sent.wait(60)
        """
        ended = _python(program, str(config), str(tmp_path / "log"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "rollout sent" in (tmp_path / "log").read_text(encoding="utf-8")


def test_json_lines_of_a_command_parse_and_carry_the_fields_of_their_spans(example: Example, tmp_path: Path) -> None:
    example_config(tmp_path, example, run__run_id="router", **SMALL)
    quiet = ("gepa", "run", "--config", "gepa.toml", "--quiet", "--json")
    ended = run_cli(*quiet, "--log-level", "runtime=debug,warn", "--log-format", "json", cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert json.loads(ended.stdout)["run_id"] == "router"
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    answered = next(line for line in lines if line["message"] == "rollout answered")
    assert (answered["level"], answered["logger"]) == ("DEBUG", "synth_optimizers.runtime")
    assert answered["run_id"] == "router"
    assert answered.keys() >= {"timestamp", "candidate", "row", "call", "attempt", "stage", "duration_ms"}
    assert {line["logger"] for line in lines} == {"synth_optimizers.runtime"}


def test_the_environment_sets_the_level_and_lines_stay_lines(example: Example, tmp_path: Path) -> None:
    example_config(tmp_path, example, run__run_id="router", **SMALL)
    ended = run_cli(
        "gepa", "run", "--config", "gepa.toml", "--quiet", cwd=tmp_path, env={"SYNTH_OPTIMIZERS_LOG": "info"}
    )
    lines = ended.stderr.splitlines()
    assert lines[0].split(" ", 1)[1] == "INFO  runtime: run started run_id=router events=0 unknown=0"
    assert lines[-1].split(" ", 1)[1].startswith("INFO  runtime: run ended run_id=router duration_ms=")
    assert ended.stdout.endswith("/runs/router\n")


@pytest.mark.parametrize("place", ["option", "environment"])
def test_an_unknown_level_is_a_usage_error(place: str, example: Example, tmp_path: Path) -> None:
    example_config(tmp_path, example, **SMALL)
    arguments, env = (
        (["--log-level", "container=loud"], {}) if place == "option" else ([], {"SYNTH_OPTIMIZERS_LOG": "loud"})
    )
    ended = run_cli("gepa", "check", "--config", "gepa.toml", *arguments, cwd=tmp_path, env=env)
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error[usage_error]: 'loud' is not a log level\nhint: ")


def test_an_unknown_logger_is_a_usage_error_that_lists_the_known_ones(example: Example, tmp_path: Path) -> None:
    example_config(tmp_path, example, **SMALL)
    ended = run_cli("gepa", "check", "--config", "gepa.toml", "--log-level", "contaner=debug", cwd=tmp_path)
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error[usage_error]: 'contaner' is not a logger\nhint: ")
    assert " container, " in ended.stderr


def test_no_secret_is_in_any_record_at_the_lowest_level(
    example: Example, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_KEY", f"{CANARY}-key")
    changes = {"proposer__api_key_env": "CANARY_KEY", "policy__api_key_env": "CANARY_KEY", **SMALL}
    config = example_config(tmp_path, example, **changes)
    with caplog.at_level(1, logger="synth_optimizers"):
        run = GepaRun.from_toml(config)
        run.check()
        run.execute()
    assert any(record.levelno == 5 for record in caplog.records)
    for record in caplog.records:
        assert CANARY not in f"{record.getMessage()} {record.__dict__}"


def _python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 (the program under test)
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env=environment(**({"CODEX_HOME": os.environ["CODEX_HOME"]} if "CODEX_HOME" in os.environ else {})),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
