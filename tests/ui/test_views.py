"""Every view of the page, with a real run, at both widths and in both colour schemes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from ui.browser import NARROW, WIDE, check_accessibility, is_shown, keep_screenshot, watched_page
from ui.conftest import ShownRuns

VIEWS = {
    "runs": "/ui/",
    "run": "/ui/runs/tickets",
    "run-cost": "/ui/runs/tickets?axis=cost",
    "lineage": "/ui/runs/tickets/lineage",
    "lineage-reference": "/ui/runs/reference/lineage",
    "candidate": "/ui/runs/tickets/candidates/{best}?against=initial",
    "rows": "/ui/runs/tickets/rows",
    "rows-heldout": "/ui/runs/tickets/rows?split=heldout&order=gain",
    "row": "/ui/runs/tickets/rows/{row}?split=train",
    "rollout": "/ui/runs/tickets/rollouts/1",
    "turns": "/ui/runs/tickets/turns",
    "turn": "/ui/runs/tickets/turns/{turn}",
    "compare": "/ui/runs/tickets/compare?other=reference",
    "settings": "/ui/runs/tickets/settings",
    "run-health": "/ui/runs/tickets/health",
    "cancelled": "/ui/runs/cancelled",
    "submit": "/ui/submit",
    "health": "/ui/health",
}


def address(runs: ShownRuns, view: str) -> str:
    """Return the address of a view of the completed run."""
    service = runs.service
    rows = service.get(f"/runs/{runs.sprint}/rows", split="train", limit=1)["rows"]
    turns = service.get(f"/runs/{runs.sprint}/turns", limit=1)["items"]
    best = service.request(runs.sprint)["best_candidate_id"]
    return service.url + VIEWS[view].format(best=best, row=rows[0]["example_id"], turn=turns[0]["turn"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_view_is_shown_and_accessible(
    browser: Browser, runs: ShownRuns, width: int, scheme: Literal["light", "dark"], tmp_path: Path
) -> None:
    with watched_page(browser, width=width, scheme=scheme) as page:
        for view in VIEWS:
            answer = page.goto(address(runs, view))
            assert answer is not None
            assert answer.ok, view
            is_shown(page)
            expect(page.locator(".problem"), view).to_have_text([])
            expect(page.get_by_role("heading", level=1), view).to_have_count(1)
            check_accessibility(page)
            keep_screenshot(page, f"{view}-{width}-{scheme}", tmp_path)


def test_the_screenshots_of_the_documentation(browser: Browser, runs: ShownRuns, tmp_path: Path) -> None:
    shown: list[tuple[str, str, Literal["light", "dark"]]] = [
        ("run", "page-run", "light"),
        ("lineage", "page-lineage", "light"),
        ("candidate", "page-candidate", "dark"),
        ("rows", "page-rows", "dark"),
    ]
    for view, name, scheme in shown:
        with watched_page(browser, width=1200, scheme=scheme) as page:
            page.goto(address(runs, view))
            is_shown(page)
            keep_screenshot(page, name, tmp_path, full_page=False)


def test_the_page_allows_no_script_and_no_address_of_others(page: Page, runs: ShownRuns) -> None:
    answer = page.goto(f"{runs.service.url}/ui/")
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_a_view_that_did_not_change_is_not_sent_again(page: Page, runs: ShownRuns) -> None:
    path = f"/views/runs/{runs.sprint}/lineage"
    first = runs.service.ask("GET", path)
    assert first.status_code == 200
    assert "<svg" in first.text
    again = runs.service.ask("GET", path, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    other = runs.service.ask("GET", f"/views/runs/{runs.sprint}", headers={"if-none-match": first.headers["etag"]})
    assert other.status_code == 200
    assert other.headers["etag"] != first.headers["etag"]
    # The page asks with the tag of the list that it shows, and keeps the list.
    page.goto(f"{runs.service.url}/ui/")
    is_shown(page)
    shown = page.locator("#runs").element_handle()
    with page.expect_response(lambda answer: answer.url.endswith("/views?") and answer.status == 304):
        pass
    with page.expect_response(lambda answer: answer.url.endswith("/views?")):
        pass
    assert shown.evaluate("section => section.isConnected")
    expect(page.locator("table.runs tbody tr")).to_have_count(3)


def test_links_lead_from_the_list_to_a_rollout_and_back(page: Page, runs: ShownRuns) -> None:
    page.goto(f"{runs.service.url}/ui/")
    page.get_by_role("link", name=runs.sprint, exact=True).click()
    expect(page).to_have_title(f"Run - {runs.sprint} - synth-optimizers")
    expect(page.locator("#verdict .verdict")).to_contain_text("Held-out +0.")
    expect(page.locator("#chart svg.synth-picture")).to_be_visible()
    expect(page.locator("#limits")).to_contain_text("of 500")
    expect(page.locator("#limits")).to_contain_text("ended the search")
    expect(page.locator("#spend tbody tr")).to_have_count(3)
    expect(page.locator("#best ins").first).to_be_visible()
    tabs = page.get_by_role("navigation", name="views of the run")
    tabs.get_by_role("link", name="Rows").click()
    page.locator("[data-heat-map] [data-candidate][data-row]").first.click()
    expect(page).to_have_url(re.compile(r"/rollouts/\d+$|/rows/[^?]+\?split=train&candidate="))
    page.go_back()
    page.locator("#row-table tbody th a").first.click()
    expect(page).to_have_url(re.compile(r"/rows/[^?]+\?split=train"))
    page.locator("table a[href*='/rollouts/']").first.click()
    expect(page).to_have_url(re.compile(r"/rollouts/\d+$"))
    for part in ("Input", "Output", "Feedback"):
        expect(page.get_by_role("heading", name=part).first).to_be_visible()
    page.go_back()
    expect(page).to_have_url(re.compile(r"/rows/[^?]+\?split=train"))
    page.go_back()
    expect(page.locator("[data-heat-map]")).to_be_visible()
    page.go_forward()
    expect(page.locator("table a[href*='/rollouts/']").first).to_be_visible()


def test_the_lineage_is_walked_with_the_keyboard(page: Page, runs: ShownRuns) -> None:
    page.goto(f"{runs.service.url}/ui/runs/{runs.sprint}/lineage")
    expect(page.locator("#checks tbody tr").first).to_be_visible()
    first = page.locator("#tree [data-candidate][tabindex='0']")
    expect(first).to_have_count(1)
    start = first.get_attribute("data-candidate")
    first.focus()
    page.keyboard.press("ArrowRight")
    after = page.locator("#tree [data-candidate]:focus").get_attribute("data-candidate")
    if after == start:
        page.keyboard.press("ArrowDown")
        after = page.locator("#tree [data-candidate]:focus").get_attribute("data-candidate")
    assert after is not None
    assert after != start
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/candidates/{re.escape(after)}$"))
    expect(page.get_by_role("heading", level=1)).to_contain_text(runs.sprint)


def test_the_skip_link_is_the_first_stop_of_the_keyboard(page: Page, runs: ShownRuns) -> None:
    page.goto(f"{runs.service.url}/ui/")
    is_shown(page)
    page.keyboard.press("Tab")
    expect(page.locator("a.skip")).to_be_focused()


def test_runs_are_filtered_and_sorted(page: Page, runs: ShownRuns) -> None:
    page.goto(f"{runs.service.url}/ui/")
    names = page.locator("table.runs tbody th")
    expect(names).to_have_count(3)
    page.get_by_role("button", name="run", exact=True).click()
    expect(names).to_have_text([runs.cancelled, runs.reference, runs.sprint])
    page.get_by_role("button", name="run", exact=True).click()
    expect(names).to_have_text([runs.sprint, runs.reference, runs.cancelled])
    page.get_by_label("state").select_option("cancelled")
    page.get_by_role("button", name="filter").click()
    expect(page).to_have_url(re.compile(r"/ui/\?state=cancelled&sort=-run$"))
    expect(names).to_have_text([runs.cancelled])
    expect(page.locator("table.runs .spark")).to_have_count(0)
    page.go_back()
    expect(page.locator("table.runs .spark")).to_have_count(2)


def test_events_are_filtered(page: Page, runs: ShownRuns) -> None:
    page.goto(f"{runs.service.url}/ui/runs/{runs.sprint}")
    items = page.locator("#events .feed li")
    expect(items.first).to_contain_text("completed")
    page.get_by_label("show").select_option("calls")
    expect(items.first).to_contain_text(re.compile(r" on (train|test):\d+: "))
    page.get_by_label("containing").fill("nothing has this text")
    expect(page.locator(".feed-note")).to_have_text("No event matches.")


def test_two_runs_and_two_candidates_are_compared(page: Page, runs: ShownRuns) -> None:
    page.goto(f"{runs.service.url}/ui/runs/{runs.sprint}/compare?other={runs.reference}")
    expect(page.locator("#view")).to_contain_text("gepa.search")
    expect(page.locator("#view")).to_contain_text("reference")
    lineage = runs.service.get(f"/runs/{runs.sprint}/lineage")
    best, initial = lineage["best_candidate_id"], lineage["initial_candidate_id"]
    page.goto(f"{runs.service.url}/ui/runs/{runs.sprint}/candidates/{best}?against={initial}")
    expect(page.locator("ins").first).to_be_visible()
    expect(page.locator(".problem")).to_have_count(0)


def test_an_unknown_address_is_explained_and_the_rest_works(page: Page, runs: ShownRuns) -> None:
    for path in ("runs/nobody", "nothing", f"runs/{runs.sprint}/rollouts/9999999", f"runs/{runs.sprint}/turns/99"):
        page.goto(f"{runs.service.url}/ui/{path}")
        expect(page.get_by_role("alert").first).to_be_visible()
        expect(page.get_by_role("alert").first).not_to_be_empty()
    page.get_by_role("link", name="All runs").click()
    expect(page.locator("table.runs tbody tr")).to_have_count(3)
