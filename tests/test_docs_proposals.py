"""`docs/reference/proposals.md`: the examples are accepted, and every refusal has the words of the page."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.example import ROOT
from support.http_server import serve_calls
from support.markdown import blocks

from synth_optimizers import GepaRunResult, ProposerError, optimize

PAGE = (ROOT / "docs/reference/proposals.md").read_text(encoding="utf-8")
MINIMAL, FULL, EDITS = blocks(PAGE, "json")
BEFORE_EDITS, AFTER_EDITS = (block.removesuffix("\n") for block in blocks(PAGE, "text"))
PROMPT = "Answer with one word."
STYLE = "Be brief."
TRAIN = "What is the colour of the ripe tomato in the garden of my aunt?"
HELDOUT = "Which shade does the clear sky have above the desert at noon?"
ROWS: list[dict[str, Any]] = [
    {"id": f"r-{number}", "question": text, "answer": "red", "split": split}
    for number, (text, split) in enumerate([(TRAIN, "train"), ("Name the colour", "train"), (HELDOUT, "test")])
]


def evaluate(prompt: str, style: str, question: str, answer: str) -> tuple[float, str]:
    """Reward a prompt that names the colour."""
    return float("colour" in prompt or "colour" in style), f"expected {answer} for {question}"


def propose(
    directory: Path, answer: str, *, prompt: str = PROMPT, finish: str = "stop", **settings: object
) -> tuple[list[Any], list[str]]:
    """Run the search with an endpoint that gives one answer to every question. Return its events and the questions."""
    asked: list[str] = []

    def endpoint(method: str, path: str, body: Any) -> tuple[int, Any]:  # noqa: ANN401
        if method == "GET":
            return 200, {"data": [{"id": "stand-in"}]}
        assert path == "/v1/chat/completions"
        asked.append(body["messages"][1]["content"])
        choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": finish}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return 200, {"model": "stand-in", "choices": [choice], "usage": usage}

    search = {"gepa.search": "reference", "gepa.max_generations": 1, "gepa.proposals_per_generation": 2}
    limits = {"proposer.max_consecutive_invalid": 1, "proposer.max_repairs": 0, **search}
    with serve_calls(endpoint) as url, contextlib.suppress(ProposerError):
        # Raised if no turn had a valid proposal.
        optimize(
            evaluate,
            rows=ROWS,
            texts={"prompt": prompt, "style": STYLE},
            model="stand-in",
            base_url=f"{url}/v1",
            budget=40,
            run_id="run",
            output_dir=directory,
            overrides={**limits, **{name.replace("__", "."): value for name, value in settings.items()}},
            progress=False,
        )
    lines = (directory / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines], asked


def fields_of(events: list[Any], kind: str) -> list[dict[str, Any]]:
    """Return the fields of all events of a type."""
    return [event["fields"] for event in events if event["type"] == kind]


def manifest(**fields: object) -> str:
    """Return a manifest with one proposal."""
    return json.dumps({"proposals": [{"proposed_payload": fields}]})


def edits(*entries: object, **fields: object) -> str:
    """Return a manifest with one proposal that edits `prompt`."""
    return json.dumps({"proposals": [{"proposed_payload": fields, "edits": {"prompt": entries}}]})


def test_the_example_of_edits_makes_the_text_of_the_page(tmp_path: Path) -> None:
    events, asked = propose(tmp_path, EDITS, prompt=BEFORE_EDITS)
    assert fields_of(events, "proposal.rejected") == []
    (found,) = [found for found in fields_of(events, "candidate.registered") if found["parent_ids"]]
    assert found["payload"] == {"prompt": AFTER_EDITS, "style": STYLE}
    assert found["kept_share"] == 4 / 6
    # The run asks for edits, and its example has the shape of the page.
    shown = re.search(r'<file name="proposal_schema.md">.*?(\{.*\})\s*\n# Edits', asked[0], re.DOTALL)
    assert shown is not None
    (wanted,) = json.loads(shown[1])["proposals"]
    (written,) = json.loads(EDITS)["proposals"]
    assert wanted["proposed_payload"] == written["proposed_payload"]
    assert [set(edit) for edit in wanted["edits"]["prompt"]] == [set(edit) for edit in written["edits"]["prompt"]]
    operations = re.findall(r"^\| `(\w+)` \| (?:a place|not read)", PAGE, re.MULTILINE)
    assert [edit["operation"] for edit in wanted["edits"]["prompt"]] == operations


@pytest.mark.parametrize(
    ("setting", "prompt", "is_asked"),
    [("auto", PROMPT, False), ("auto", BEFORE_EDITS, True), ("always", PROMPT, True), ("never", BEFORE_EDITS, False)],
)
def test_edits_are_asked_for_as_the_page_says(tmp_path: Path, setting: str, prompt: str, is_asked: bool) -> None:
    answer = edits({"operation": "append", "text": "Name the colour."})
    events, asked = propose(tmp_path, answer, prompt=prompt, proposer__edits=setting)
    assert ("\n# Edits\n" in asked[0]) is is_asked
    # Edits are accepted in any case.
    (found,) = [found for found in fields_of(events, "candidate.registered") if found["parent_ids"]]
    assert found["payload"]["prompt"] == f"{prompt}\nName the colour."


@pytest.mark.parametrize(("answer", "count"), [(MINIMAL, 1), (FULL, 2)], ids=["minimal", "full"])
def test_the_examples_are_accepted_by_a_run(tmp_path: Path, answer: str, count: int) -> None:
    events, asked = propose(tmp_path, answer)
    assert fields_of(events, "proposal.rejected") == []
    proposed = [entry["proposed_payload"]["prompt"] for entry in json.loads(answer)["proposals"]]
    registered = [found for found in fields_of(events, "candidate.registered") if found["parent_ids"]]
    assert len(registered) == count
    assert [found["payload"]["prompt"] for found in registered] == proposed
    assert [found["payload"]["style"] for found in registered] == [STYLE] * count
    assert [found["rationale"] for found in registered] == [
        entry.get("rationale", "") for entry in json.loads(answer)["proposals"]
    ]
    assert GepaRunResult.from_run_dir(tmp_path / "run").best_prompt["prompt"] in proposed
    # The example of the page has the fields that the run asks for.
    shown = re.search(r'<file name="proposal_schema.md">.*?(\{.*\})\s*</file>', asked[0], re.DOTALL)
    assert shown is not None
    wanted = json.loads(shown[1])
    assert list(json.loads(FULL)) == list(wanted)
    assert list(json.loads(FULL)["proposals"][0]) == list(wanted["proposals"][0])
    assert list(json.loads(FULL)["evidence"]) == list(wanted["evidence"])


@pytest.mark.parametrize(
    "answer",
    [
        "Here it is:\n```json\n" + MINIMAL + "```\nGood luck.",
        "<think>{ hm }</think>" + MINIMAL,
        MINIMAL.replace("proposed_payload", "candidate"),
        json.dumps({"proposals": [{"prompt": "Say one word", "style": None, "mood": 3}]}),
        json.dumps({"proposals": [{"proposed_payload": {"prompt": "Say one word", "style": None}}]}),
        json.dumps({"proposals": [{"edits": [{"field": "prompt", "operation": "append", "text": "Now."}]}]}),
        json.dumps({"proposals": [{"edits": {"prompt": [{"find": "one", "replace": "a"}], "style": []}}]}),
        edits({"operation": "replace", "find": "one", "text": "a"}, prompt=""),
    ],
    ids=["fenced", "thoughts", "candidate", "inline", "null", "list of edits", "find and replace", "empty text"],
)
def test_other_spellings_are_accepted(tmp_path: Path, answer: str) -> None:
    events, _ = propose(tmp_path, answer)
    assert fields_of(events, "proposal.rejected") == []
    assert len(fields_of(events, "candidate.registered")) == 2


def test_fields_that_were_not_requested_are_dropped(tmp_path: Path) -> None:
    events, asked = propose(tmp_path, manifest(prompt="Name the colour", style="New.", mood="New."))
    assert "in these fields only: `prompt`" in asked[0]
    (found,) = [found for found in fields_of(events, "candidate.registered") if found["parent_ids"]]
    assert sorted(found["dropped_fields"]) == ["mood", "style"]
    assert found["payload"]["style"] == STYLE


def table() -> dict[str, str]:
    """Return the messages of the page by code."""
    section = PAGE.split("## What refuses a proposal")[1].split("###")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))


CASES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "manifest_unreadable": ("", {}),
    "manifest_invalid": ("{}", {}),
    "answer_too_large": ("x" * 1500, {"proposer__max_answer_kb": 1}),
    "answer_cut_off": ("", {"finish": "length"}),
    "empty_proposal": (manifest(), {}),
    "field_not_requested": (manifest(style="Other."), {}),
    "field_unknown": (manifest(mood="Other."), {}),
    "field_empty": (manifest(prompt=" "), {}),
    "field_too_long": (manifest(prompt="a" * 70), {"gepa__max_field_chars": 60}),
    "candidate_too_long": (manifest(prompt="a" * 64), {"gepa__max_candidate_tokens": 12}),
    "template_variable_lost": (manifest(prompt="Say one word"), {"prompt": "Say {question}"}),
    "kept_text_lost": (
        manifest(prompt="Say it"),
        {"candidate__keep": [{"field": "prompt", "text": "one word"}]},
    ),
    "edit_not_found": (edits({"operation": "replace", "find": "Answer with two words.", "text": "Say it"}), {}),
    "edit_ambiguous": (edits({"operation": "delete", "find": "w"}), {}),
    "edit_empty": (edits({"operation": "append", "text": ""}), {}),
    "edits_and_text": (edits({"operation": "append", "text": "Say it"}, prompt="Say one word"), {}),
    "train_leakage": (manifest(prompt=f"Say it: {TRAIN}"), {}),
    "heldout_leakage": (manifest(prompt=f"Say it: {HELDOUT}"), {}),
}


def test_every_code_of_the_page_has_a_case() -> None:
    # Codex has tests of its own, with the program.
    assert set(table()) - set(CASES) == {"no_proposal"}
    sources = [
        path.read_text(encoding="utf-8")
        for folder in ("synth_gepa/src", "synth_optimizer_platform/src/proposer")
        for path in (ROOT / "rust/crates" / folder).rglob("*.rs")
        if not path.stem.endswith("tests")
    ]
    used = {code for text in sources for code in re.findall(r'(?:problem\(|Problem \{ code: )"(\w+)"', text)}
    assert used == set(table())


@pytest.mark.parametrize("code", CASES)
def test_a_refusal_has_the_words_of_the_page(tmp_path: Path, code: str) -> None:
    answer, settings = CASES[code]
    events, _ = propose(tmp_path, answer, **settings)
    problems = [problem for found in fields_of(events, "proposal.rejected") for problem in found["problems"]]
    said = [problem["message"] for problem in problems if problem["code"] == code]
    assert said, problems
    words = re.sub(r"\d+", "N", table()[code]).replace("r-N", "N")
    assert words in re.sub(r"\d+", "N", said[0].replace("r-0", "0"))
    assert len(fields_of(events, "candidate.registered")) == 1


def test_a_repair_turn_lists_the_problems(tmp_path: Path) -> None:
    _, asked = propose(tmp_path, manifest(prompt=" "), proposer__max_repairs=1)
    first, second = asked
    assert '<file name="repair.md">' not in first
    assert "- field_empty in `prompt`: the text is empty" in second
    named = set(re.findall(r"^\| `(\w+\.md)` \|", PAGE, re.MULTILINE))
    assert set(re.findall(r'<file name="([^"]+)">', second)) <= named


def test_a_new_credential_is_refused(tmp_path: Path) -> None:
    events, _ = propose(tmp_path, manifest(prompt="Use sk-proj-" + "a1B2" * 12))
    (found,) = fields_of(events, "proposal.rejected")
    (problem,) = found["problems"]
    assert problem["code"] == "manifest_invalid"
    assert problem["message"] in PAGE
