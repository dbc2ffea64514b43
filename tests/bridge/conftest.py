"""A folder with a function and rows."""

from pathlib import Path

import pytest

FUNCTIONS = '''
import asyncio, os, sys, time
from pathlib import Path

CALLS = Path(__file__).with_name("calls.txt")
GATE = Path(__file__).with_name("gate")

def note(word):
    with CALLS.open("a") as file:
        file.write(word + "\\n")

def evaluate(prompt, question, answer):
    """Answers a question."""
    note(question)
    return {"score": prompt == answer, "feedback": f"expected {answer}", "output": prompt,
            "objectives": {"brevity": 0.5}, "usage": {"prompt_tokens": 3, "cost_usd": 0.1}, "trace": [1, {"a": {2}}]}

def gated(prompt, row):
    note(row["question"])
    while not GATE.exists():
        time.sleep(0.01)
    return 1

async def gated_async(prompt, row):
    note(row["question"])
    while not GATE.exists():
        await asyncio.sleep(0.01)
    return 1, "awaited"

def named_model(prompt, row, policy):
    return {"score": 1, "output": policy}

async def named_model_async(prompt, row, policy="none"):
    return {"score": 1, "output": policy}

class Overloaded(Exception):
    retry_after = 1.2

def overloaded(prompt, row):
    note(row["question"])
    if not GATE.exists():
        raise Overloaded("the model is overloaded")
    return 1

def fail(prompt, row):
    return row["missing"]

def prints(prompt, row):
    print("printed by the function")
    os.write(1, b"written by the function\\n")
    assert sys.stdin.read() == ""
    return 1

def leave(prompt, row):
    sys.exit(3)

def die(prompt, row):
    if prompt == "die":
        os._exit(7)
    if prompt == "kill":
        os.kill(os.getpid(), 9)
    return 0.5

def hang(prompt, row):
    if prompt == "hang":
        time.sleep(3600)
    return 0.5

async def hang_async(prompt, row):
    if prompt == "block":
        time.sleep(3600)
    if prompt == "hang":
        await asyncio.sleep(3600)
    return 0.5

def fork(prompt, row):
    os.fork()
    return 0.25

def returns(prompt, row):
    return eval(prompt)
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with `evals.py` and 20 rows in `rows.csv`."""
    (tmp_path / "evals.py").write_text(FUNCTIONS)
    rows = "".join(f"question {number},{number % 3}\n" for number in range(20))
    (tmp_path / "rows.csv").write_text("question,answer\n" + rows)
    return tmp_path
