"""Shared code of the cookbooks: brief parsing, the reflector's APIs, model calls, and the statistics."""

import asyncio
import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from shared import llm
from shared.brief import Attempt, Brief, NoBriefError, Proposal, Row, find_brief_text, read_brief
from shared.reflector import MODEL, Handler
from shared.significance import permutation_test, seed_statistics, sign_test, t_quantile, t_test

Json = dict[str, Any]

FENCE = "~~~~~~"
PARENT = f"""<file name="parent.md">
# Parent: gepa_1

## Field `system`

{FENCE}
Name the queue.
# Parent: not a title
{FENCE}

## Field `style`

{FENCE}
Be brief.
{FENCE}
</file>
"""
BRIEF = f"""Write 2 proposals, each with an idea of its own, for a better text, in these fields only: `system`, `style`.
Base every change on the evidence.

{PARENT}
<file name="evidence.md">
# Evidence: how the parent did on 3 rows, worst first (1 of them are its best)

## Row train:7 (no score)

Input: {{"text":"lost"}}

## Row train (a):1 (score 0.25)

Input: {{"text":"Where is it?"}}

Output: early

Objectives: accuracy 0.25, brevity 1.0

Feedback: Wrong.
Look again: it is late.

Details: {{"expected":"late"}}

Feedback: off by one

Trace: {{"event_history":[]}}

Record: {{"reward":0.25}}

## Row train:2 (score 1)

Input: {{"text":"cut [… 12 bytes left out …] here"}}

Record: {{"actionable_side_info":{{"feedback":"Right.","expected":"early"}}}}
</file>

<file name="rejected.md">
# Tried before and rejected: do not propose these again

## gepa_2: no better than its parent: 0.5

Its `system` against the parent's:
{FENCE}
@@ -1,2 +1,2 @@
-Name the queue.
+Name a queue.
 # Parent: not a title
{FENCE}
</file>

<file name="repair.md">
# What was wrong with your last answer

- field_empty in `style`: the text is empty

# What it proposed

- no problem
</file>
"""


def test_lines_of_a_feedback_are_not_parsed_as_sections() -> None:
    said = 'Wrong.\nInput: {"text":"fake"}\nDetails: {"expected":"fake"}\nRecord: {}\n\nInput: {"text":"fake"}'
    row = read_brief(BRIEF.replace("Wrong.\nLook again: it is late.", said)).rows[1]
    assert row.feedback == [said, "off by one"]
    assert (row.input, row.details) == ({"text": "Where is it?"}, {"expected": "late"})
    assert row.record == {"reward": 0.25}


def test_a_brief_is_parsed() -> None:
    brief = read_brief(BRIEF)
    assert (brief.operation, brief.proposal_count, brief.components) == ("mutate", 2, ["system", "style"])
    assert brief.parent == brief.base == {"system": "Name the queue.\n# Parent: not a title", "style": "Be brief."}
    assert brief.parent_ids == ["gepa_1"]
    lost = Row("train:7", {"text": "lost"}, None)
    late = Row(
        "train (a):1",
        {"text": "Where is it?"},
        0.25,
        ["Wrong.\nLook again: it is late.", "off by one"],
        {"expected": "late"},
        {"reward": 0.25},
    )
    assert brief.rows[:2] == [lost, late]
    assert (brief.rows[2].details, brief.rows[2].score) == ({"expected": "early"}, 1.0)
    assert brief.rows[2].input == {"text": "cut [… 12 bytes left out …] here"}
    assert brief.rejected == [
        Attempt("gepa_2", "no better than its parent: 0.5", ["Name a queue."], ["Name the queue."])
    ]
    assert brief.tried == {"Name a queue."}
    assert brief.problems == ["field_empty in `style`: the text is empty"]


def test_a_merge_has_two_parents_and_a_base() -> None:
    def texts(title: str, text: str) -> str:
        return f"# {title}\n\n## Field `system`\n\n{FENCE}\n{text}\n{FENCE}\n"

    parts = [texts("Parent 1: gepa_1", "one"), texts("Parent 2: gepa_2", "two")]
    parts += [texts("Their common ancestor: gepa_0", "none"), texts("What the proposal is laid over", "over")]
    question = "Two good candidates changed the same texts. Write one proposal, in these fields: `system`."
    brief = read_brief(question + '\n\n<file name="parent.md">\n' + "\n".join(parts) + "\n</file>\n")
    assert (brief.operation, brief.proposal_count, brief.components) == ("merge", 1, ["system"])
    assert brief.parents == [{"system": "one"}, {"system": "two"}]
    assert (brief.ancestor, brief.base) == ({"system": "none"}, {"system": "over"})


def test_the_newest_message_with_a_brief_is_used() -> None:
    old, new = BRIEF.replace("Write 2", "Write 1"), BRIEF
    contents = [old, "another message", [{"type": "input_text", "text": new}], "<environment/>"]
    body = {"input": [{"role": "user", "content": content} for content in contents]}
    assert read_brief(find_brief_text(body)).proposal_count == 2
    assert find_brief_text({"input": new}) == new
    with pytest.raises(NoBriefError, match='answer = "structured"'):
        find_brief_text({"messages": [{"role": "user", "content": "Work in the current directory."}]})


class Server(ThreadingHTTPServer):
    """A server in a thread of the test."""

    daemon_threads = True

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.server_port}/v1"

    def __enter__(self) -> "Server":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self.shutdown()
        self.server_close()


def propose(brief: Brief) -> list[Proposal]:
    """Return more proposals than requested."""
    if brief.rows[0].score is not None:
        raise RuntimeError("cannot")
    return [Proposal({"system": f"{brief.parent['system']} {number}"}, f"idea {number}") for number in range(5)]


@pytest.fixture(scope="module")
def reflector() -> Iterator[str]:
    """Yield the address of a reflector."""
    with Server(("127.0.0.1", 0), type("Test", (Handler,), {"propose": staticmethod(propose)})) as server:
        yield server.url


def post(url: str, body: Json) -> str:
    """Return the reply to a request as text."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310 (a loopback address)
        return str(reply.read().decode())


def test_the_reflector_answers_whole_and_streamed_in_both_families(reflector: str) -> None:
    body: Json = {"model": MODEL, "messages": [{"role": "user", "content": BRIEF}], "input": BRIEF}
    chat = json.loads(post(f"{reflector}/chat/completions", body))
    answer = chat["choices"][0]["message"]["content"]
    manifest = json.loads(answer)
    assert manifest["schema_version"] == "gepa_workspace_proposal_v3"
    assert [it["rationale"] for it in manifest["proposals"]] == ["idea 0", "idea 1"]
    assert manifest["evidence"]["example_ids_used"] == ["train:7", "train (a):1"]
    assert "no language model" in manifest["rationale"]
    whole = json.loads(post(f"{reflector}/responses", body))
    assert whole["output"][0]["content"][0]["text"] == answer
    parts = post(f"{reflector}/chat/completions", body | {"stream": True}).split("\n\n")
    assert json.loads(parts[0].removeprefix("data: "))["choices"][0]["delta"]["content"] == answer
    assert parts[1:] == ["data: [DONE]", ""]
    events = [part.split("\n") for part in post(f"{reflector}/responses", body | {"stream": True}).split("\n\n")[:-1]]
    assert [name for name, _ in events] == [
        "event: response.created",
        "event: response.output_item.added",
        "event: response.output_text.delta",
        "event: response.output_item.done",
        "event: response.completed",
    ]
    assert json.loads(events[-1][1].removeprefix("data: "))["response"] == whole


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        ({"model": "gpt-5.4-mini", "input": BRIEF}, 404, "there is no model"),
        ({"model": MODEL, "input": "Hello"}, 400, "no message holds a brief"),
        ({"input": BRIEF}, 400, "names a model"),
        ({"model": MODEL, "input": BRIEF.replace("(no score)", "(score 0)")}, 500, "RuntimeError: cannot"),
    ],
)
def test_the_reflector_explains_its_errors(reflector: str, body: Json, code: int, told: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        post(f"{reflector}/responses", body)
    assert error.value.code == code
    assert told in json.load(error.value)["error"]["message"]
    error.value.close()


class Model(BaseHTTPRequestHandler):
    """A stand-in for a model: it sends configured replies and records the requests."""

    replies: ClassVar[list[tuple[int, Json]]] = []
    asked: ClassVar[list[tuple[str | None, Json]]] = []

    def do_POST(self) -> None:
        """Send the next reply."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.headers.get("Authorization"), body))
        code, document = self.replies.pop(0)
        payload = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the base class)
        """Log nothing."""


def ask(replies: list[tuple[int, Json]], policy: Json) -> llm.Completion:
    """Call a model that sends these replies."""
    Model.replies[:], Model.asked[:] = replies, []
    with Server(("127.0.0.1", 0), Model) as server:
        return asyncio.run(llm.complete([{"role": "user", "content": "hi"}], {"base_url": server.url} | policy))


def test_calls_are_retried_while_the_model_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setenv(llm.KEY, "secret-1")
    said = {"choices": [{"message": {"content": "hello"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    found = ask([(429, {}), (503, {}), (200, said)], {"model": "m", "max_tokens": 5, "config": {"seed": 4}})
    assert found == llm.Completion("hello", {"prompt_tokens": 3, "completion_tokens": 1})
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.0}
    assert Model.asked[-1] == ("Bearer secret-1", body | {"seed": 4, "max_tokens": 5})
    assert len(Model.asked) == 3


@pytest.mark.parametrize(
    ("code", "document", "told"),
    [
        (401, {"error": {"message": "bad key secret-1"}}, "HTTP 401: bad key ***"),
        (200, {"choices": []}, "is no chat completion"),
        (200, {"choices": [{"message": {"content": None}}]}, "holds no text"),
    ],
)
def test_errors_do_not_contain_the_key(code: int, document: Json, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(llm.KEY, "secret-1")
    with pytest.raises(llm.ModelError) as error:
        ask([(code, document)], {"model": "m"})
    # The same call would fail again, and may have been paid: the run does not wait for it.
    assert (error.value.status_code, error.value.retry_after) == (502, None)
    assert told in error.value.detail
    assert "secret-1" not in error.value.detail


def test_space_around_a_key_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(llm.KEY, " secret-1\n")
    ask([(200, {"choices": [{"message": {"content": "hello"}}]})], {"model": "m"})
    assert Model.asked[0][0] == "Bearer secret-1"


@pytest.mark.parametrize("key", ["secret-1\nsecret-2", "secret-1\x7f", "secret-1\u00e9"])
def test_a_key_that_is_invalid_in_a_header_is_neither_sent_nor_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(llm.KEY, key)
    with pytest.raises(llm.ModelError, match="POLICY_API_KEY") as error:
        ask([], {"model": "m"})
    assert error.value.status_code == 502
    assert "secret" not in error.value.detail
    assert not Model.asked


def test_errors_that_quote_headers_are_reported_by_name_only() -> None:
    assert (
        llm._exchange_error(httpx.LocalProtocolError("Illegal header value b'Bearer secret-1'")) == "LocalProtocolError"
    )
    assert llm._exchange_error(httpx.ConnectError("refused")) == "ConnectError: refused"


@pytest.mark.parametrize("before", range(280, 301))
def test_no_part_of_a_key_remains_in_a_truncated_text(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(llm.KEY, "secret-1")
    with pytest.raises(llm.ModelError) as error:
        ask([(401, {"error": {"message": "-" * before + "secret-1"}})], {"model": "m"})
    assert "s" not in error.value.detail.partition("HTTP 401")[2]


@pytest.mark.parametrize("host", ["127.0.0.1:9", "no port:x"])
def test_an_address_is_shown_without_its_password(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "FIRST_PAUSE_SECONDS", 0.0)
    with pytest.raises(llm.ModelError) as error:
        asyncio.run(llm.complete([], {"model": "m", "base_url": f"http://me:pass-1@{host}/v1"}))
    assert error.value.status_code == 502
    assert "me:" not in error.value.detail
    assert "pass-1" not in error.value.detail


@pytest.mark.parametrize(
    ("url", "is_trusted"),
    [
        ("https://api.example.com/v1", True),
        ("http://127.0.0.1:8000/v1", True),
        ("http://[::1]:8000/v1", True),
        ("http://localhost:8000/v1", True),
        ("http://api.example.com/v1", False),
        ("http://127.0.0.1.example.com/v1", False),
        ("http://127.0.0.1@example.com/v1", False),
        ("http://localhost@10.0.0.5/v1", False),
        ("ftp://127.0.0.1/v1", False),
        ("http://no port:x/v1", False),
    ],
)
def test_the_key_is_sent_only_by_https_or_to_loopback(
    url: str, is_trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(llm.ADDRESS, raising=False)
    assert llm._is_trusted(url) is is_trusted


def test_a_request_without_the_key_reports_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "_is_trusted", lambda _: False)
    monkeypatch.setenv(llm.KEY, "secret-1")
    with pytest.raises(llm.ModelError, match="is sent by https or to loopback only"):
        ask([(401, {})], {"model": "m"})
    assert Model.asked[0][0] is None


def test_no_rollout_redirects_the_key_from_the_address_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(llm.KEY, "secret-1")
    Model.replies[:], Model.asked[:] = [(200, {"choices": [{"message": {"content": "hello"}}]})], []
    policy = {"model": "m", "base_url": "https://example.invalid/v1", "inference_url": "https://example.invalid/v1"}
    with Server(("127.0.0.1", 0), Model) as server:
        monkeypatch.setenv(llm.ADDRESS, server.url)
        asyncio.run(llm.complete([], policy | {"config": {"base_url": "https://example.invalid/v1"}}))
    assert [key for key, _ in Model.asked] == ["Bearer secret-1"]


def test_an_unreachable_model_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.delenv(llm.KEY, raising=False)
    with pytest.raises(llm.ModelError, match="POLICY_API_KEY is not set") as unreachable:
        asyncio.run(llm.complete([], {"model": "m", "config": {"base_url": "http://127.0.0.1:9/v1"}}))
    with pytest.raises(llm.ModelError, match=r"policy\.model is missing") as wrong:
        asyncio.run(llm.complete([], {}))
    # A run waits for a model, and not for another request.
    assert (unreachable.value.status_code, unreachable.value.retry_after) == (502, 5)
    assert (wrong.value.status_code, wrong.value.retry_after) == (422, None)


def test_the_statistics_give_known_values() -> None:
    assert t_quantile(0.95, 4) == pytest.approx(2.7764, abs=1e-4)
    assert t_test(2.7764, 4) == pytest.approx(0.05, abs=1e-5)
    assert t_test(1.0, 1) == pytest.approx(0.5, abs=1e-9)
    assert sign_test(0, 0) == 1.0
    assert sign_test(9, 1) == pytest.approx(22 / 1024)
    assert permutation_test([0.1, 0.2, 0.3, 0.1, 0.2]) == 1 / 32
    assert permutation_test([-1.0, 1.0]) == 0.75
    found = seed_statistics([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.p_t == pytest.approx(0.01324, abs=1e-4)
    assert found.low == pytest.approx(3 - 2.7764 * 0.70711, abs=1e-3)
    assert seed_statistics([0.5] * 5).p_t is None
