"""`optimize` from Python: a function of this process, rows and texts."""

import csv
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synth_optimizers import BudgetExceededError, ConfigError, GepaRunResult, optimize
from synth_optimizers.bridge import BridgeError, load_task
from synth_optimizers.function_run import choose_proposer

PROMPT = "A message is spam if it holds one of these words.\nSpam words: winner"


def evaluate(prompt: str, message: str, label: str) -> tuple[bool, str]:
    """Tell spam from messages that are fine."""
    listed = prompt.lower().partition("spam words:")[2].replace(",", " ").split()
    said = "spam" if any(word in message.lower().split() for word in listed) else "fine"
    return said == label, f"said {said}; the message is {label}"


def rows(task: Path) -> list[dict[str, Any]]:
    """Return the rows of the toy task."""
    with (task / "rows.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_function_of_this_process_is_optimized(
    task: Path, reflector: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(task)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    result = optimize(
        evaluate,
        rows=rows(task),
        texts={"prompt": PROMPT},
        model="offline-reflector",
        base_url=reflector,
        budget=300,
        run_id="mine",
    )
    assert isinstance(result, GepaRunResult)
    gain = result.scores.heldout_gain
    assert gain is not None
    assert gain.low is not None
    assert gain.low > 0.1
    assert result.claim is not None
    assert (result.claim.verdict, result.claim.candidate_id) == ("better", result.best_candidate["candidate_id"])
    assert str(result.claim).startswith("better than the initial candidate by 0.")
    assert sum(result.rollouts_by_purpose.values()) == result.rollouts["train"] + result.rollouts["heldout"]
    assert Path("runs/mine.rollouts.sqlite").is_file()
    shown = capsys.readouterr()
    assert shown.out == ""
    rollouts = result.usage["rollout_calls"]
    assert result.scores.best_train is not None
    best = f"best train score {result.scores.best_train.mean:.3f}"
    last = f"{rollouts:,} of at most 300 rollouts, {best}, {result.claim.sentence}"
    assert last in shown.err.split("\r")[-1]
    # The same id is the same run: nothing is paid again.
    again = optimize(
        evaluate,
        rows="rows.csv",
        texts={"prompt": PROMPT},
        model="offline-reflector",
        base_url=reflector,
        run_id="mine",
        budget=300,
    )
    assert again.best_candidate == result.best_candidate


def test_problems_are_found_before_anything_is_paid(
    task: Path, reflector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(task)

    def run(function: Callable[..., object], texts: dict[str, str], budget: int = 9) -> None:
        optimize(function, rows="rows.csv", texts=texts, model="m", base_url=reflector, budget=budget)

    def misspelt(promt: str, row: dict[str, str]) -> bool:
        return promt in row

    with pytest.raises(ConfigError, match=r"promt"):
        run(misspelt, {"prompt": "x"})
    with pytest.raises(ConfigError, match=r"\[text_empty\]"):
        run(evaluate, {"prompt": " "})
    with pytest.raises(ConfigError, match="cannot be read"):
        run(evaluate, {"prompt": "@missing.txt"})
    with pytest.raises(ConfigError, match="max_total_rollouts"):
        run(evaluate, {"prompt": "x"}, budget=0)
    assert not list(Path("runs").glob("*/events.jsonl"))


def test_the_proposer_is_chosen_by_what_is_there(tmp_path: Path) -> None:
    assert choose_proposer("m", "http://127.0.0.1:1/v1", None, {}).section == {
        "backend": "openai_compatible",
        "base_url": "http://127.0.0.1:1/v1",
        "model": "m",
    }
    chosen = choose_proposer("m", None, None, {"OPENAI_API_KEY": "sk-x"})
    assert chosen.section["api_key_env"] == "OPENAI_API_KEY"
    assert chosen.reason == "OPENAI_API_KEY is set"
    assert "sk-x" not in str(chosen)
    assert (
        choose_proposer("m", None, "MY_KEY", {"OPENAI_BASE_URL": "http://127.0.0.1:2/v1"}).section["api_key_env"]
        == "MY_KEY"
    )
    (tmp_path / "auth.json").write_text("{}")
    signed_in = choose_proposer(None, None, None, {"CODEX_HOME": str(tmp_path)})
    assert signed_in.section == {"backend": "codex_app_server", "auth_mode": "host"}
    with pytest.raises(ConfigError, match="--model is missing"):
        choose_proposer(None, None, None, {"OPENAI_API_KEY": "sk-x"})
    with pytest.raises(ConfigError, match="no proposer was found") as raised:
        choose_proposer("m", None, None, {"HOME": str(tmp_path)})
    assert "codex login" in raised.value.hint


class Display:
    """A display of IPython that can be updated."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> "Display":
        """Show data that can be updated."""
        assert raw
        assert display_id
        self.shown.append(data["text/plain"])
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        """Replace the data."""
        assert raw
        self.shown.append(data["text/plain"])


def test_a_notebook_shows_one_line_that_updates(
    task: Path, reflector: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(task)
    display = Display()
    notebook = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()), display=display)
    monkeypatch.setitem(sys.modules, "IPython", notebook)

    def run(budget: int) -> GepaRunResult:
        return optimize(
            evaluate,
            rows="rows.csv",
            texts={"prompt": PROMPT},
            model="offline-reflector",
            base_url=reflector,
            budget=budget,
        )

    result = run(300)
    assert display.shown[:2] == ["", "with 19 held-out rows a gain above 0.46 can be told from luck"]
    assert result.claim is not None
    assert display.shown[-1].endswith(f", {result.claim.sentence}")
    assert all(re.match(r"\d+ of at most 300 rollouts, ", line) for line in display.shown[2:])
    assert capsys.readouterr() == ("", "")
    display.shown.clear()
    with pytest.raises(BudgetExceededError) as raised:
        run(1)
    assert display.shown[-1] == "0 of at most 1 rollouts, failed"
    # A notebook shows the notes of an exception below its message.
    assert raised.value.__notes__ == [f"hint: {raised.value.hint}"]


def test_ctrl_c_says_where_the_run_is_and_the_same_call_resumes_it(
    task: Path, reflector: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(task)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    counted = task / "calls.txt"
    counted.touch()
    is_interrupted = threading.Event()

    def count(prompt: str, message: str, label: str) -> tuple[bool, str]:
        with counted.open("a") as file:
            file.write(f"{prompt!r} {message}\n")
        calls = len(counted.read_text().splitlines())
        if calls == 60:
            os.kill(os.getpid(), signal.SIGINT)
        if calls >= 60 and not is_interrupted.is_set():
            # The run must not complete before its process has handled the signal.
            is_interrupted.wait(0.5)
        return evaluate(prompt, message, label)

    def run() -> GepaRunResult:
        return optimize(
            count,
            rows="rows.csv",
            texts={"prompt": PROMPT},
            model="offline-reflector",
            base_url=reflector,
            budget=300,
            run_id="stopped",
        )

    with pytest.raises(KeyboardInterrupt) as raised:
        run()
    is_interrupted.set()
    folder = task / "runs" / "stopped"
    said = f"the run stopped is saved in {folder}: the same call with run_id='stopped' resumes it"
    assert str(raised.value) == said
    assert capsys.readouterr().err.split("\r")[-1].strip().endswith(", interrupted")
    assert GepaRunResult.from_run_dir(folder).status == "interrupted"
    paid = counted.read_text().splitlines()
    assert len(paid) >= 60
    result = run()
    assert result.status == "completed"
    assert result.scores.heldout_gain is not None
    # A row that was scored with a prompt is scored with it again only to measure the noise.
    again = counted.read_text().splitlines()
    assert again[: len(paid)] == paid
    assert len(again) == result.usage["rollout_calls"]
    assert len(again) - len(set(again)) == result.rollouts_by_purpose["repeat"] > 0


def test_scores_that_never_change_end_with_the_initial_text(
    task: Path, reflector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(task)

    def constant(prompt: str, message: str, label: str) -> tuple[float, str]:
        assert prompt
        assert message
        return 0.5, f"the message is {label}"

    result = optimize(
        constant,
        rows="rows.csv",
        texts={"prompt": PROMPT},
        model="offline-reflector",
        base_url=reflector,
        budget=200,
        run_id="constant",
    )
    assert result.best_prompt == {"prompt": PROMPT}
    assert result.claim is not None
    assert (result.claim.verdict, str(result.claim)) == ("unchanged", "no candidate was better than the initial one")
    assert result.rollouts_by_purpose["check"] == 0
    assert result.usage["rollout_calls"] < 200


def test_a_file_that_was_edited_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "edited.py"
    lines = (
        "with open('loaded.txt', 'a') as out:",
        "    out.write('x')",
        "def evaluate(prompt, row):",
        "    return {}",
    )
    source = "\n".join((*lines, "rows = [{{'n': n}} for n in range(30)]", ""))
    file.write_text(source.format(0))
    before = file.stat()
    scores = []
    for value in (0, 1):
        file.write_text(source.format(value))
        # Size and time stay as they are, so byte code of the earlier version looks as if it were new.
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        task = load_task("edited.py:evaluate", "edited.py:rows", {"prompt": PROMPT})
        scores.append(task.function.call(PROMPT, {"n": 1}))
    assert scores == [0, 1]
    # The function and the rows of a task are in one module.
    assert (tmp_path / "loaded.txt").read_text() == "xx"
    file.write_text("def evaluate(:")
    with pytest.raises(BridgeError, match="cannot be imported"):
        load_task("edited.py:evaluate", "edited.py:rows", {"prompt": PROMPT})
    file.write_text(source.format(2))
    assert load_task("edited.py:evaluate", "edited.py:rows", {"prompt": PROMPT}).function.call(PROMPT, {}) == 2
