"""`docs/reference/containers.md`: its container answers as shown, and the client behaves as described."""

import contextlib
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pages.events_page import Catalogue
from support import docs_container
from support.docs_container import Exchange
from support.example import ROOT
from support.http_server import serve_calls
from support.markdown import blocks
from support.polling import wait_until

from synth_optimizers import GepaConfig, GepaRun, GepaRunResult
from synth_optimizers._synth_optimizers import event_catalogue

SOURCE = ROOT / "rust/crates/synth_optimizer_platform/src/container"
TEXT = docs_container.PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of the container of the page."""
    with docs_container.running(tmp_path_factory.mktemp("container")) as address:
        yield address


def test_every_json_block_is_json() -> None:
    shown = docs_container.blocks("json")
    assert len(shown) > len(docs_container.exchanges())
    for block in shown:
        json.loads(block)


def test_the_container_url_block_is_a_valid_configuration_part() -> None:
    first = tomllib.loads(blocks((ROOT / "docs/reference/config.md").read_text(encoding="utf-8"), "toml")[0])
    (part,) = docs_container.blocks("toml")
    assert GepaConfig.from_mapping({**first, **tomllib.loads(part)}, environ={}).warnings == ()


def test_every_exchange_matches_the_page(url: str) -> None:
    shown = docs_container.exchanges()
    assert {exchange.path for exchange in shown} >= {"/metadata", "/program", "/taskset", "/taskset/tasks", "/rollouts"}
    for exchange in shown:
        assert settled(url, exchange) == [], f"{exchange.method} {exchange.path}"


def settled(url: str, exchange: Exchange) -> list[str]:
    """Return the differences of an answer; poll a running rollout until it has ended."""
    found: list[str] = []

    def is_settled() -> bool:
        status, reply = docs_container.call(url, exchange.method, exchange.path, exchange.request)
        found[:] = [] if status == exchange.status else [f"the status is {status}"]
        found.extend(docs_container.differences(exchange.reply, reply))
        return not found or exchange.method == "POST"

    with contextlib.suppress(AssertionError):
        wait_until("the exchange", is_settled)
    return found


def test_program_rows_and_record_are_shown_completely(url: str) -> None:
    for path in ("/program", "/taskset"):
        (shown,) = (exchange for exchange in docs_container.exchanges() if exchange.path == path)
        assert docs_container.call(url, "GET", path)[1] == shown.reply
    record = docs_container.rollout_exchange()
    real = docs_container.call(url, "POST", record.path, record.request)[1]
    assert real.keys() == record.reply.keys()


def test_a_repeated_rollout_id_returns_the_existing_record(url: str) -> None:
    (shown,) = (
        exchange
        for exchange in docs_container.exchanges()
        if exchange.request and "candidate_overlay" in exchange.request
    )
    request = {**shown.request, "rollout_id": "r-repeated"}
    first = docs_container.call(url, "POST", "/rollouts", request)
    other = {**request, "candidate": {"router_prompt": "Another text."}}
    assert docs_container.call(url, "POST", "/rollouts", other) == first


def test_a_better_text_scores_better(url: str) -> None:
    (shown,) = (
        exchange
        for exchange in docs_container.exchanges()
        if exchange.request and "candidate_overlay" in exchange.request
    )
    (rows,) = (shown.reply for shown in docs_container.exchanges() if "tasks" in shown.reply)
    rewards = []
    for number, prompt in enumerate(["invoice", "invoice password"]):
        for task in rows["tasks"]:
            request = {**shown.request, "candidate": {"router_prompt": prompt}, "task": task}
            request["rollout_id"] = f"r-better-{number}-{task['seed']}"
            rewards.append(docs_container.call(url, "POST", "/rollouts", request)[1]["reward_info"]["outcome_reward"])
    assert rewards == [1.0, 0.0, 1.0, 1.0]


@dataclass(frozen=True)
class Recorded:
    """A run with the first configuration of the pages, and every call that the container received."""

    result: GepaRunResult
    calls: list[tuple[str, str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return a run against a separate container, with a proposer that knows every word."""
    calls: list[tuple[str, str, Any]] = []
    directory = tmp_path_factory.mktemp("run")
    config = blocks((ROOT / "docs/reference/config.md").read_text(encoding="utf-8"), "toml")[0]
    (directory / "gepa.toml").write_text(config, encoding="utf-8")
    with docs_container.running(directory) as behind:

        def hand_on(method: str, path: str, body: object) -> tuple[int, Any]:
            calls.append((method, path, body))
            return docs_container.call(behind, method, path, body)

        with serve_calls(hand_on) as container, serve_calls(propose) as endpoint:
            search = ["gepa.search=reference", "gepa.max_generations=1"]
            changes = [f"container.url={container}", f"proposer.base_url={endpoint}/v1", *search]
            result = GepaRun.from_toml(directory / "gepa.toml", changes, environ={}).execute()
    return Recorded(result, calls)


def propose(_method: str, _path: str, _body: object) -> tuple[int, Any]:
    """Answer a proposer turn with the text that contains every word."""
    payload = {"router_prompt": "Name the team of the ticket. Words: invoice, password, parcel, crash"}
    proposal = {"proposal_type": "frontier_variation", "proposed_payload": payload, "rationale": "all words"}
    manifest = {"schema_version": "gepa_workspace_proposal_v3", "proposals": [proposal]}
    message = {"role": "assistant", "content": json.dumps(manifest)}
    return 200, {"model": "qwen3", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def test_a_run_finds_the_better_text(run: Recorded) -> None:
    scores = run.result.scores
    assert scores.seed_heldout is not None
    assert scores.best_heldout is not None
    assert (scores.seed_heldout.mean, scores.best_heldout.mean) == (0.25, 1.0)


def test_a_run_sends_the_rollout_shown_on_the_page(run: Recorded) -> None:
    shown = docs_container.rollout_exchange()
    sent = [
        body for _, path, body in run.calls if path == shown.path and body["rollout_id"] == shown.request["rollout_id"]
    ]
    assert sent == [shown.request]


def test_a_run_makes_the_calls_listed_on_the_page(run: Recorded) -> None:
    before = [(method, path) for method, path, _ in run.calls if path != "/rollouts"]
    assert before == [
        ("GET", "/metadata"),
        ("GET", "/program"),
        ("GET", "/task_info"),
        ("GET", "/taskset"),
        ("POST", "/taskset/tasks"),
        ("POST", "/taskset/tasks"),
    ]
    shown = next(exchange for exchange in docs_container.exchanges() if exchange.path == "/taskset/tasks")
    asked = next(body for _, path, body in run.calls if path == "/taskset/tasks")
    assert asked["task_ids"][:2] == shown.request["task_ids"]
    assert {**asked, "task_ids": []} == {**shown.request, "task_ids": []}


def test_every_event_of_a_run_matches_the_catalogue(run: Recorded) -> None:
    catalogue = Catalogue(event_catalogue())
    lines = Path(run.result.event_feed_path).read_text(encoding="utf-8").splitlines()
    assert len({json.loads(line)["type"] for line in lines}) > 20
    assert [problem for line in lines for problem in catalogue.problems(line)] == []


def test_the_page_lists_the_keys_of_a_rollout_request() -> None:
    (shown,) = (
        exchange
        for exchange in docs_container.exchanges()
        if exchange.request and "candidate_overlay" in exchange.request
    )
    source = (SOURCE / "body.rs").read_text(encoding="utf-8")
    fields = {name: set(re.findall(r"^    (\w+):", body, re.M)) for name, body in structs(source)}
    assert shown.request.keys() == fields["RolloutBody"] - {"dataset_row", "policy"}
    assert shown.request["metadata"].keys() == fields["RolloutMetadata"]
    assert shown.request["candidate_overlay"].keys() == fields["CandidateOverlay"]
    (listed,) = re.findall(r"fn policy_value.*?json!\(\{\n(.*?)\}\)", source, flags=re.DOTALL)
    sent = set(re.findall(r'"(\w+)":', listed))
    (policy,) = (block["policy"] for block in map(json.loads, docs_container.blocks("json")) if "policy" in block)
    assert policy.keys() == sent - {"base_url", "inference_url", "max_tokens", "config"}


def structs(source: str) -> list[tuple[str, str]]:
    """Return the structs of a Rust file with their bodies."""
    return re.findall(r"^struct (\w+)(?:<'a>)? \{\n(.*?)^\}", source, flags=re.MULTILINE | re.DOTALL)


def test_the_page_lists_the_keys_of_a_row_request() -> None:
    source = (SOURCE / "rows.rs").read_text(encoding="utf-8")
    (body,) = re.findall(r'json!\(\{ ("split": .*?) \}\)', source)
    names = re.findall(r'"(\w+)"', *re.findall(r"let key = (.*);", source))
    sent = [re.findall(r'"?(\w+)"?:', body.replace("key:", f"{name}:")) for name in names]
    shown = [list(block) for block in map(json.loads, docs_container.blocks("json")) if "filters" in block]
    assert sorted(sent) == sorted(map(list, {tuple(keys) for keys in shown}))


def test_the_page_lists_the_statuses_that_the_client_knows() -> None:
    source = (SOURCE / "record.rs").read_text(encoding="utf-8")
    classes = [re.findall(r'"(\w+)"', words) for words in re.findall(r"Some\(\s*((?:\"\w+\"[ |,]*)+)\s*\)", source)]
    table = re.search(r"\| meaning \| words \|\n\| --- \| --- \|\n((?:\|.*\n)+)", TEXT)
    assert table is not None
    assert [re.findall(r"`(\w+)`", row) for row in table.group(1).splitlines()] == classes


def test_the_page_lists_the_reward_fields_in_the_order_of_the_client() -> None:
    source = (SOURCE / "record.rs").read_text(encoding="utf-8")
    (listed,) = re.findall(r"let rewards = \[\n(.*?)\];", source, flags=re.DOTALL)
    places = re.findall(r'\("([\w.]+)", ', listed)
    assert re.findall(r"^\d\. `([\w.]+)`$", TEXT, flags=re.MULTILINE) == places


@pytest.mark.parametrize(
    ("file", "list_name"),
    [
        ("contract.rs", "SUPPORTED_VERSIONS"),
        ("record.rs", "ROW_KEYS"),
        ("rows.rs", "DATASET_KEYS"),
        ("rows.rs", "TASK_KEYS"),
        ("process.rs", "PASSED_VARIABLES"),
        ("process.rs", "PASSED_PREFIXES"),
    ],
)
def test_the_page_names_the_fields_that_the_client_reads(file: str, list_name: str) -> None:
    source = (SOURCE / file).read_text(encoding="utf-8")
    found = re.search(rf"const {list_name}: \[&str; \d+\] =\s+\[(.*?)\];", source, flags=re.DOTALL)
    assert found is not None
    for name in re.findall(r'"([^"]+)"', found.group(1)):
        assert f"`{name}`" in TEXT
