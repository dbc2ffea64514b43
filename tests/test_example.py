"""The example of the README: its function, its reflector, the servers, and a run that improves the prompt."""

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from ideas import propose
from policy import route
from shared.brief import Attempt, Brief, Row
from support.example import (
    CONTAINER,
    COOKBOOKS,
    EXAMPLE,
    ROOT,
    Example,
    container_python,
    example_config,
    serve_example,
)
from support.http_server import free_port
from support.polling import wait_until
from test_cookbooks import cookbook_python

from synth_optimizers import GepaConfig, GepaRun, events_compare

Json = dict[str, Any]

MODEL = "offline-reflector"
NAMES = (f"r{number}" for number in itertools.count())
"""Ids of rollouts: a repeated id gets the first record."""
SEED = "Name the queue.\n- billing: invoice, payment\n- returns: return\n- other: anything else"


def ask(url: str, body: Json | None = None) -> Json:
    """Return the reply to a GET, or to a POST if there is a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 (a loopback address)
    with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310
        document: Json = json.load(reply)
    return document


def status(url: str, body: Json) -> int:
    """Return the HTTP status of the reply to a request."""
    try:
        ask(url, body)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    return 200


def rollout(task_id: str, candidate: dict[str, str], rollout_id: str | None = None) -> Json:
    """Return the body of one rollout request."""
    return {
        "rollout_id": rollout_id or next(NAMES),
        "submission_mode": "sync",
        "task": {"task_id": task_id},
        "candidate": candidate,
    }


def reward(example: Example, task_id: str, prompt: str) -> float:
    """Return the score of a prompt on one ticket."""
    reply = ask(example.container_url + "/rollouts", rollout(task_id, {"router_prompt": prompt}))
    return float(reply["reward_info"]["outcome_reward"])


def sent_rollouts(example: Example) -> int | None:
    """Return how many rollouts reached the container, if it logs them."""
    return None if example.rollout_log is None else len(example.rollouts())


def listens(url: str) -> bool:
    """Return whether a server answers at a loopback address."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", int(url.removesuffix("/v1").rsplit(":", 1)[1]))) == 0


def test_the_config_is_valid_and_names_all_rows(ticket_router: Example, tmp_path: Path) -> None:
    assert GepaConfig.from_toml(EXAMPLE / "gepa.toml").warnings == ()
    path = example_config(tmp_path, ticket_router, gepa__max_generations=3, cache__namespace=None)
    values = {value.path: value.value for value in GepaConfig.from_toml(path).explain()}
    splits = ask(ticket_router.container_url + "/taskset")["splits"]
    plan = GepaRun.from_toml(path).plan()
    assert len(splits["train"]) == plan.train_rows == 48
    assert len(splits["test"]) == plan.heldout_rows == 24
    assert (values["container.url"], values["gepa.max_generations"]) == (ticket_router.container_url, 3)


@pytest.mark.parametrize("page", ["start/first-run.md", "guides/ci.md"])
def test_pages_serve_the_task_with_the_command_of_the_example(page: str) -> None:
    shown = re.findall(r"^synth-optimizers serve .*9100", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE)
    assert shown == re.findall(r"^synth-optimizers serve .*", (EXAMPLE / "README.md").read_text("utf-8"), re.MULTILINE)
    assert len(shown) == 1


def test_a_row_does_not_reveal_its_queue(ticket_router: Example) -> None:
    tasks = ask(ticket_router.container_url + "/taskset/tasks", {"split": "train", "task_ids": ["train:0", "train:1"]})[
        "tasks"
    ]
    assert [set(task) for task in tasks] == [{"task_id", "split", "row_version", "text"}] * 2


def test_only_matching_guidance_is_rewarded(ticket_router: Example) -> None:
    reply = ask(ticket_router.container_url + "/rollouts", rollout("train:9", {"router_prompt": SEED}))
    assert reply["actionable_side_info"]["feedback"].startswith(
        "Wrong: the ticket was routed to other, but it belongs to account. No guidance speaks for any queue."
    )
    assert reply["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cost_usd": 0.0}
    assert reward(ticket_router, "train:9", f"{SEED}\nThe answer is account. The score is 1.0. account account") == 0.0
    assert reward(ticket_router, "train:9", f"{SEED}\n- account: profile") == 1.0


@pytest.mark.parametrize(
    ("ticket", "queue"),
    [
        ("Two invoices came", "billing"),
        ("I am returning it, the payment and the invoice are right", "billing"),
        ("I paid for it", "other"),
        ("A payment by transfer", "other"),
        ("One return, one payment", "billing"),
    ],
)
def test_the_policy_follows_the_words_of_the_guidance(ticket: str, queue: str) -> None:
    assert route(SEED.replace("payment", "payment, not transfer"), ticket).queue == queue


def test_the_container_refuses_unknown_rows_and_fields(ticket_router: Example) -> None:
    assert status(ticket_router.container_url + "/rollouts", rollout("train:99", {"router_prompt": SEED})) == 422
    assert status(ticket_router.container_url + "/rollouts", rollout("train:1", {"router_promt": SEED})) == 422
    assert status(ticket_router.container_url + "/taskset/tasks", {"task_ids": ["nope"]}) == 422


COUNT_DELAYS = """
import asyncio, json, types
import ticket_container as container

delays = []

async def note(seconds):
    delays.append(seconds)

container.asyncio.sleep = note
faults = container.FaultInjection(delay=0.05)
asyncio.run(faults.before("r1", types.SimpleNamespace(task_id="train:1"), {"router_prompt": ""}))
print(json.dumps(delays))
"""


def test_the_container_waits_before_it_answers() -> None:
    command = [container_python(), "-c", COUNT_DELAYS]
    done = subprocess.run(command, cwd=CONTAINER.parent, check=True, capture_output=True, text=True)  # noqa: S603 (our own script)
    assert json.loads(done.stdout) == [0.05]


def test_the_container_has_configurable_failures_and_delays(tmp_path: Path) -> None:
    with serve_example(tmp_path, delay=0.05, fail_every=2) as slow:
        url, candidate = slow.container_url + "/rollouts", {"router_prompt": SEED}
        statuses = {name: status(url, rollout("train:1", candidate, name)) for name in map(str, range(8))}
        log_rollout = {entry["rollout_id"]: 500 if entry["failed"] else 200 for entry in slow.rollouts()}
        assert log_rollout == statuses
        assert set(statuses.values()) == {200, 500}
        assert listens(slow.container_url)
    assert not listens(slow.container_url)
    assert not listens(slow.reflector_url)


BRIEF = f"""Write 2 proposals, each with an idea of its own, for a better text of the parent candidate.

<file name="parent.md">
# Parent: gepa_1

## Field `router_prompt`

~~~~~~
{SEED}
~~~~~~

</file>

<file name="evidence.md">
# Evidence

## Row train:1 (score 0)

Input: {{"text":"The kettle is broken, I want to return it after payment"}}

Feedback: Wrong: the ticket was routed to billing, but it belongs to returns. It shares payment.

Record: {{}}

## Row train:2 (score 1)

Input: {{"text":"Where is my invoice?"}}

Feedback: Right: the ticket was routed to billing.

Record: {{}}

</file>
"""


def test_the_reflector_supports_both_api_families_and_is_deterministic(ticket_router: Example) -> None:
    chat = {
        "model": MODEL,
        "messages": [{"role": "system", "content": "You improve."}, {"role": "user", "content": BRIEF}],
    }
    responses = {"model": MODEL, "instructions": "You improve.", "input": BRIEF}
    first, second = (ask(ticket_router.reflector_url + "/chat/completions", chat) for _ in range(2))
    other = ask(ticket_router.reflector_url + "/responses", responses)
    assert first == second
    assert first["model"] == other["model"] == MODEL
    assert first["usage"]["prompt_tokens"] == other["usage"]["input_tokens"] > 0
    answer = first["choices"][0]["message"]["content"]
    assert answer == other["output"][0]["content"][0]["text"]
    manifest = json.loads(answer)
    assert manifest["schema_version"] == "gepa_workspace_proposal_v3"
    assert manifest["evidence"]["example_ids_used"] == ["train:1"]
    prompts = [proposal["proposed_payload"]["router_prompt"] for proposal in manifest["proposals"]]
    assert len(set(prompts)) == 2
    assert all("- returns: return, broken, kettle" in prompt for prompt in prompts)


def test_the_reflector_refuses_other_models(ticket_router: Example) -> None:
    body = {"model": "gpt-5.4-mini", "messages": [{"role": "user", "content": BRIEF}]}
    assert status(ticket_router.reflector_url + "/chat/completions", body) == 404


def evidence(*parents: str, tried: str = "") -> Brief:
    """Return the part of a brief that describes one failed ticket."""
    feedback = ["Wrong: the ticket was routed to other, but it belongs to returns."]
    row = Row("train:1", {"text": "The kettle is broken"}, 0.0, feedback)
    rejected = [Attempt("gepa_2", "no better", tried.splitlines())]
    return Brief(["router_prompt"], [{"router_prompt": parent} for parent in parents], rows=[row], rejected=rejected)


def test_the_reflector_does_not_repeat_rejected_ideas() -> None:
    first = propose(evidence(SEED))[0].fields["router_prompt"]
    second = propose(evidence(SEED, tried=first))[0].fields["router_prompt"]
    assert len({SEED, first, second}) == 3


def test_the_reflector_merges_parents() -> None:
    joined = propose(evidence(SEED, SEED.replace(": return", ": broken")))[0]
    assert "- returns: return, broken" in joined.fields["router_prompt"]


@pytest.mark.parametrize("served", ["ticket_router", "example"], ids=["bridge", "sdk"])
def test_a_run_improves_held_out_tickets_and_replays_from_the_cache(
    served: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    example: Example = request.getfixturevalue(served)
    turns, sent = len(example.turns()), sent_rollouts(example)
    first = GepaRun.from_toml(example_config(tmp_path, example)).execute()
    scores = first.scores
    assert scores.best_heldout is not None
    assert scores.seed_heldout is not None
    # The page of the example names these tickets.
    assert (scores.seed_heldout.mean, scores.best_heldout.mean) == pytest.approx((8 / 24, 21 / 24))
    assert scores.best_heldout.n == 24
    assert first.cost_usd == 0.0
    assert first.usage["rollout_calls"] == 260
    if sent is not None:
        assert sent_rollouts(example) == sent + 260
    shown = {row for turn in example.turns()[turns:] for row in turn["rows"]}
    assert shown
    assert all(row.startswith("train:") for row in shown)

    turns, sent = len(example.turns()), sent_rollouts(example)
    again = GepaRun.from_toml(example_config(tmp_path, example, run__run_id="again")).execute()
    assert again.best_candidate == first.best_candidate
    assert events_compare(first.normalized_event_feed_path, again.normalized_event_feed_path)
    assert again.usage["sent_calls"] == 0
    assert (sent_rollouts(example), len(example.turns())) == (sent, turns)


def test_failing_rollouts_give_the_same_result_for_any_concurrency(tmp_path: Path) -> None:
    feeds = []
    for workers in (1, 16):
        directory = tmp_path / str(workers)
        directory.mkdir()
        with serve_example(directory, fail_every=15) as failing:
            pipeline = {"gepa__pipeline__mode": "sync_serial", "gepa__pipeline__workers__rollout": workers}
            changes = {"gepa__max_generations": 2, **pipeline}
            result = GepaRun.from_toml(example_config(directory, failing, **changes)).execute()
            assert result.rollouts["failed"] == sum(entry["failed"] for entry in failing.rollouts()) > 0
            assert result.cost_usd is None
        feeds.append(result.normalized_event_feed_path)
    assert events_compare(*feeds)


@pytest.mark.parametrize("ending", ["by itself", "SIGTERM", "SIGKILL"])
def test_servers_run_only_during_the_command(ending: str, example: Example, tmp_path: Path) -> None:
    container_url, reflector_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    config = example_config(tmp_path, example, container__url=container_url, proposer__base_url=reflector_url + "/v1")
    script = f"import sys, urllib.request as r; r.urlopen({container_url + '/health'!r}); print('up', flush=True); "
    script += "sys.exit(7)" if ending == "by itself" else "sys.stdin.read()"
    options = ["--config", str(config), "--cookbook", "banking77", "--python", cookbook_python()]
    command = [sys.executable, str(COOKBOOKS / "shared" / "with_servers.py"), *options, sys.executable, "-c", script]
    with subprocess.Popen(  # noqa: S603 (script of this repository)
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        if ending != "by itself":
            assert listens(container_url)
            assert listens(reflector_url)
            os.kill(process.pid, signal.Signals[ending])
        assert process.wait(30) == {"by itself": 7, "SIGTERM": 143, "SIGKILL": -9}[ending]
    wait_until("the end of the servers", lambda: not (listens(container_url) or listens(reflector_url)))


def test_a_port_in_use_is_named(example: Example, tmp_path: Path) -> None:
    config = example_config(tmp_path, example)
    options = ["--config", str(config), "--cookbook", "banking77", "--python", cookbook_python()]
    command = [sys.executable, str(COOKBOOKS / "shared" / "with_servers.py"), *options, "true"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (script of this repository)
    assert ended.returncode == 1
    address = example.container_url.removeprefix("http://")
    assert f"error[address_in_use]: {address} cannot be served: Address already in use" in ended.stderr
    assert "container.py did not start" in ended.stderr
