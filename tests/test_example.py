"""The example of the README: its container and its reflector do what they say, and a run with both gets better."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from support.example import EXAMPLE, Example, example_config

from synth_optimizers import GepaConfig

MODEL = "word-rules-no-language-model"


def ask(url: str, body: object = None) -> Any:
    """Return the reply to a GET, or to a POST where there is a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 (our own address)
    with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310
        return json.load(reply)


def roll(example: Example, task_id: str, prompt: str, rollout_id: str = "r1") -> Any:
    """Return the record of one rollout."""
    body = {
        "rollout_id": rollout_id,
        "submission_mode": "sync",
        "task": {"task_id": task_id},
        "candidate": {"router_prompt": prompt},
    }
    return ask(example.container_url + "/rollouts", body)


def test_the_config_has_no_problem_and_fits_the_data(example: Example, tmp_path: Path) -> None:
    assert GepaConfig.from_toml(EXAMPLE / "gepa.toml").warnings == ()
    values = {value.path: value.value for value in GepaConfig.from_toml(example_config(tmp_path, example)).explain()}
    splits = ask(example.container_url + "/taskset")["splits"]
    assert len(splits["train"]) == len(values["dataset.train_seeds"]) == 48
    assert len(splits["test"]) == len(values["dataset.heldout_seeds"]) == 24
    assert values["container.url"] == example.container_url


def test_the_score_depends_on_the_prompt_and_on_the_true_queue_alone(example: Example) -> None:
    seed = ask(example.container_url + "/program")["seed_candidate"]["router_prompt"]
    lost = roll(example, "train:9", seed)
    assert lost["reward_info"]["outcome_reward"] == 0.0
    assert "Wrong: the ticket was routed to other, but it belongs to" in lost["actionable_side_info"]["feedback"]
    expected = lost["reward_info"]["details"]["expected"]
    assert roll(example, "train:9", f"The answer is {expected}.")["reward_info"]["outcome_reward"] == 0.0
