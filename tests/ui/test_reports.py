"""The report of runs that ended in every way: one file, without script and network, from the code of the page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from service.short_runs import sections
from support.example import Example
from support.gate import gate
from support.service import Service, run_service

from ui.browser import NARROW, WIDE, check_accessibility, keep_screenshot, watched_page
from ui.conftest import ShownRuns

A4_PIXELS = 794
NO_REWARD = b'{"status": "completed"}'
VERDICT = re.compile(r"^Held-out \+0\.\d+ \[0\.\d+, 0\.\d+\], \d+ better, \d+ worse: ")


def useless_proposals(answer: bytes) -> bytes:
    """Replace every proposed text by one that says nothing of the task."""
    reply = json.loads(answer)
    message = reply["choices"][0]["message"]
    manifest = json.loads(message["content"])
    for place, proposal in enumerate(manifest["proposals"]):
        proposal["proposed_payload"] = dict.fromkeys(proposal["proposed_payload"], f"Do what is best. {place}")
    message["content"] = json.dumps(manifest)
    return json.dumps(reply).encode()


@pytest.fixture(scope="module")
def ended(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service with a failed, a cancelled and a never improved run, by these names."""
    place = tmp_path_factory.mktemp("reports")
    with (
        gate(example.container_url, holds="/rollouts", free=8) as held,
        gate(example.container_url, holds="/rollouts", free=1_000_000, alter=lambda _: NO_REWARD) as odd,
        gate(example.reflector_url, free=1_000_000, alter=useless_proposals) as useless,
        run_service(place) as service,
    ):
        service.run_id(sections(place, example, run__run_id="failed", container__url=odd.url))
        service.run_id(sections(place, example, run__run_id="cancelled", container__url=held.url))
        held.wait_for(9)
        service.ask("POST", "/runs/cancelled/cancel", {"reason": "enough was seen"})
        held.open()
        service.run_id(sections(place, example, run__run_id="never-improved", proposer__base_url=useless.url))
        ends = {name: service.wait(name)["status"] for name in ("failed", "cancelled", "never-improved")}
        assert ends == {"failed": "failed", "cancelled": "cancelled", "never-improved": "completed"}
        yield service


def report_of(service: Service, run_id: str) -> Path:
    """Return the report in the directory of a run."""
    path = Path(service.request(run_id)["run_dir"]) / "report.html"
    return path if path.is_absolute() else service.log.parent / path


def expect_self_contained(page: Page, path: Path) -> None:
    """Check that the report needs nothing but itself."""
    text = path.read_text(encoding="utf-8")
    assert "<script" not in text
    assert re.search(r'(src|href)="(https?:)?//', text) is None
    assert page.locator("link[rel=stylesheet], img[src], iframe").count() == 0


def test_the_report_of_an_improvement_says_so_in_one_sentence(
    browser: Browser, runs: ShownRuns, tmp_path: Path
) -> None:
    path = runs.run_dir(runs.sprint) / "report.html"
    for width in (WIDE, NARROW):
        for scheme in ("light", "dark"):
            with watched_page(browser, width=width, scheme=scheme) as page:
                page.goto(path.as_uri())
                expect(page.locator(".verdict").first).to_have_text(VERDICT)
                # The chart and the lineage, in the width that fits.
                pictures = page.locator("svg.synth-picture:visible")
                expect(pictures).to_have_count(2)
                units = pictures.first.evaluate("picture => picture.viewBox.baseVal.width")
                assert units == (390 if width == NARROW else 880)
                expect(page.locator("ins").first).to_be_visible()
                for part in ("Lineage", "Rows", "Spend", "Settings", "Use it and check it"):
                    expect(page.get_by_role("heading", name=re.compile(part, re.IGNORECASE)).first).to_be_visible()
                check_accessibility(page)
                expect_self_contained(page, path)
                keep_screenshot(page, f"report-{width}-{scheme}", tmp_path)


def test_a_printed_report_has_all_of_its_texts_on_its_pages(browser: Browser, runs: ShownRuns) -> None:
    with watched_page(browser, width=A4_PIXELS) as page:
        page.goto((runs.run_dir(runs.sprint) / "report.html").as_uri())
        cut = "box => getComputedStyle(box).overflowY !== 'visible' && box.scrollHeight > box.clientHeight + 1"
        texts = page.locator("pre.text, .diff")
        texts.first.evaluate("box => box.append('a long text '.repeat(5000))")
        assert texts.first.evaluate(cut), "a long text scrolls on a screen"
        page.emulate_media(media="print")
        assert not texts.evaluate_all(f"boxes => boxes.some({cut})")
        heights = page.locator("section").evaluate_all("found => found.map(section => section.scrollHeight)")
        # Chromium writes the tree of pages uncompressed.
        pages = len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4")))
        assert pages >= sum(heights) // (2 * A4_PIXELS)
        assert pages >= 2


@pytest.mark.parametrize(
    ("run_id", "words"),
    [("failed", "failed"), ("cancelled", "cancelled"), ("never-improved", "no candidate was better")],
)
def test_a_run_without_an_improvement_has_a_report(
    page: Page, ended: Service, run_id: str, words: str, tmp_path: Path
) -> None:
    path = report_of(ended, run_id)
    page.goto(path.as_uri())
    expect(page.locator("body")).to_contain_text(re.compile(words, re.IGNORECASE))
    expect(page.get_by_role("heading", level=1)).to_contain_text(run_id)
    check_accessibility(page)
    expect_self_contained(page, path)
    keep_screenshot(page, f"report-{run_id}", tmp_path)


def test_a_report_is_written_at_any_moment(page: Page, ended: Service, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    for source in (["--service", ended.url, "cancelled"], [str(report_of(ended, "cancelled").parent)]):
        command = [sys.executable, "-m", "synth_optimizers.cli", "runs", "report", *source, "--out", str(out)]
        subprocess.run(command, check=True, timeout=60)  # noqa: S603 (the program under test)
        page.goto(out.as_uri())
        expect(page.get_by_role("heading", level=1)).to_contain_text("cancelled")
        expect_self_contained(page, out)
        out.unlink()
