"""Texts that try to be markup, terminal codes, huge or unreadable are shown as text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect
from service.short_runs import sections
from support.example import Example
from support.gate import gate
from support.service import Service, run_service

from ui.browser import check_accessibility, is_shown, watched_page

MARKUP = '</pre></script><script>window.attacked = 1</script><img src=x onerror="window.attacked = 2">'
TEXTS = {
    "markup": MARKUP,
    "attributes": '" \' onmouseover=window.attacked=3 x=" &lt;b&gt; javascript:alert(1)',
    "ansi": "\x1b[31mred\x1b[0m\x1b]8;;http://example.invalid\x07link\x1b]8;;\x07\x00\x08",
    "right to left": "\u202eevil\u202c \u0645\u0631\u062d\u0628\u0627 \u2066isolate",
    "lone surrogate": "half of a pair: \ud800 and \udc00",
    "one megabyte": "long " * 200_000 + MARKUP,
}
HOSTILE = itertools.cycle(TEXTS.values())
SHOWN = {
    "markup": "<script>window.attacked = 1</script>",
    "attributes": 'onmouseover=window.attacked=3 x=" &lt;b&gt; javascript:alert(1)',
    "ansi": "\u241b[31mred\u241b[0m",
    "right to left": "\u27e8U+202E\u27e9evil\u27e8U+202C\u27e9",
    "lone surrogate": "half of a pair: ",
    "one megabyte": "long long long",
}
"""What a reader sees of each text."""
NAMES = {
    "router_prompt": "<img/src=x/onerror=window.attacked=4>prompt",
    "train:": "<i/onmouseover=window.attacked=5>train:",
    "offline-reflector": "<u/onclick=window.attacked=6>reflector",
}
"""The names of the example's text, rows and model, and those of the hostile run."""


def hostile_proposer(answer: bytes) -> bytes:
    """Add a hostile text to every proposed text of an answer."""
    reply = json.loads(answer)
    message = reply["choices"][0]["message"]
    manifest = json.loads(message["content"])
    for proposal in manifest["proposals"]:
        hostile = next(HOSTILE)
        proposal["rationale"] = hostile[:2000]
        texts = proposal["proposed_payload"]
        proposal["proposed_payload"] = {name: f"{text}\n{hostile}" for name, text in texts.items()}
    message["content"] = json.dumps(manifest)
    return json.dumps(reply).encode()


def hostile_rollout(answer: bytes) -> bytes:
    """Add hostile feedback to a rollout."""
    reply = json.loads(answer)
    reply["feedback"] = MARKUP + TEXTS["ansi"] + TEXTS["right to left"]
    reply.setdefault("reward_info", {}).setdefault("details", {})["prediction"] = MARKUP
    return json.dumps(reply).encode()


@pytest.fixture(scope="module")
def attacked(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Path]]:
    """Yield a service with a completed run whose proposer and container answer with hostile texts."""
    place = tmp_path_factory.mktemp("hostile")
    free = 1_000_000
    field, model = NAMES["router_prompt"], NAMES["offline-reflector"]
    with (
        gate(example.reflector_url, free=free, alter=hostile_proposer, renamed=NAMES) as proposer,
        gate(example.container_url, holds="/rollouts", free=free, alter=hostile_rollout, renamed=NAMES) as container,
        gate(example.container_url, holds="/rollouts", free=free, alter=lambda _: MARKUP.encode()) as broken,
        run_service(place) as service,
    ):
        more = {"gepa__max_generations": 6, "gepa__max_total_rollouts": 400}
        named = {"candidate__target_modules": [field], "proposer__model": model, "policy__model": MARKUP}
        changes = {"container__url": container.url, "proposer__base_url": proposer.url, **more, **named}
        service.run_id(sections(place, example, **changes))
        service.run_id(sections(place, example, run__run_id="broken", container__url=broken.url))
        assert service.wait("router")["status"] == "completed"
        assert service.wait("broken")["status"] == "failed"
        yield service, place / "runs" / "router"


def expect_only_text(page: Page) -> None:
    """Check that nothing of a hostile text became markup."""
    assert page.evaluate("window.attacked") is None
    assert page.locator("main img, main script, main [onmouseover]").count() == 0


def test_hostile_texts_are_shown_as_text_in_every_view(page: Page, attacked: tuple[Service, Path]) -> None:
    service, _ = attacked
    candidates = service.get("/runs/router/lineage")["candidates"]
    turns = service.get("/runs/router/turns")["items"]
    assert len(candidates) >= len(TEXTS)
    row = service.get("/runs/router/rows", split="train", limit=1)["rows"][0]["example_id"]
    assert row.startswith(NAMES["train:"])
    addresses = ["", "/lineage", "/rows", f"/rows/{quote(row, safe='')}", "/rollouts/1", "/settings", "/health"]
    addresses += ["/compare?candidate=initial&other_candidate=best"]
    addresses += [f"/candidates/{candidate['candidate_id']}?against=initial" for candidate in candidates]
    addresses += [f"/turns/{turn['turn']}" for turn in turns]
    texts = ""
    for address in addresses:
        page.goto(f"{service.url}/ui/runs/router{address}")
        is_shown(page)
        expect(page.get_by_role("heading", level=1)).to_have_text("router completed")
        expect(page.locator("#view > .view > .problem"), address).to_have_text([])
        expect_only_text(page)
        texts += page.locator("main").inner_text()
    missing = [name for name, shown in {**SHOWN, **NAMES, "policy": MARKUP}.items() if shown not in texts]
    assert missing == []
    assert not set(texts) & set("\x1b\x07\x00\u202e\u2066")


def test_the_hostile_message_of_a_failed_run_is_shown_as_text(page: Page, attacked: tuple[Service, Path]) -> None:
    service, _ = attacked
    page.goto(f"{service.url}/ui/runs/broken")
    expect(page.locator("#verdict .verdict")).to_contain_text("<script>window.attacked = 1</script>")
    expect(page.locator("#events .feed li").first).to_contain_text("failed")
    expect_only_text(page)
    report = service.log.parent / "runs" / "broken" / "report.html"
    page.goto(report.as_uri())
    expect(page.locator(".verdict").first).to_contain_text("<script>window.attacked = 1</script>")
    expect_only_text(page)


def test_a_view_with_hostile_texts_is_accessible_and_no_wider_than_the_window(
    browser: Browser, attacked: tuple[Service, Path]
) -> None:
    service, _ = attacked
    best = service.request("router")["best_candidate_id"]
    with watched_page(browser, width=390) as page:
        for address in ("", f"/candidates/{best}?against=initial", "/rollouts/1"):
            page.goto(f"{service.url}/ui/runs/router{address}")
            is_shown(page)
            check_accessibility(page)
            expect_only_text(page)


def test_the_report_of_a_hostile_run_has_no_script(page: Page, attacked: tuple[Service, Path]) -> None:
    _, run_dir = attacked
    page.goto((run_dir / "report.html").as_uri())
    expect(page.get_by_role("heading", level=1)).to_contain_text("router")
    expect_only_text(page)
    assert page.locator("script").count() == 0
