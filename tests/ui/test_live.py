"""The page of a service while runs change: submit, live updates, controls, a restart, and the token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect
from service.short_runs import LONG, config_file, sections
from service.test_token import TOKEN, token_file
from support.example import Example
from support.gate import Gate
from support.service import Service, run_service

from ui.browser import check_accessibility, is_shown, watched_page


def state(page: Page) -> str:
    """Return the state that the page shows of its run."""
    return page.locator("h1 .badge").inner_text()


def toml(place: Path, example: Example, **changes: object) -> str:
    """Return the text of a configuration."""
    return (place / config_file(place, example, **changes)).read_text(encoding="utf-8")


def expect_state(page: Page, *states: str) -> None:
    """Wait until the page shows one of these states."""
    expect(page.locator("h1 .badge")).to_have_text(re.compile(f"^({'|'.join(states)})$"))


def shown_events(page: Page) -> list[int]:
    """Return the sequence numbers of the shown events, newest first."""
    texts = page.locator("#events .feed .at").all_inner_texts()
    return [int(text.split()[0]) for text in texts]


def test_a_run_is_submitted_watched_paused_resumed_and_deleted(
    page: Page, service: Service, tmp_path: Path, example: Example, container: Gate
) -> None:
    page.goto(f"{service.url}/ui/")
    page.get_by_role("link", name="submit a run").click()
    config, findings = page.get_by_label("configuration (TOML)"), page.locator("#findings")
    config.fill("this is no TOML")
    page.get_by_role("button", name="check").click()
    expect(findings).to_contain_text("TOML")
    config.fill(toml(tmp_path, example, gepa__minibatch_size=0))
    page.get_by_role("button", name="submit").click()
    expect(findings).to_contain_text("gepa.minibatch_size")
    expect(page).to_have_url(re.compile("/ui/submit$"))
    check_accessibility(page)
    config.fill(toml(tmp_path, example, container__url=container.url))
    page.get_by_role("button", name="check").click()
    expect(findings).to_contain_text("Nothing prevents this run from starting.")
    page.get_by_role("button", name="submit").click()

    expect(page).to_have_url(f"{service.url}/ui/runs/router")
    expect_state(page, "running")
    container.wait_for(7)
    expect(page.locator("#now")).to_contain_text(re.compile(r"\d+ rollouts? in flight"))
    page.get_by_role("button", name="pause").click()
    expect(page.locator(".control-answer")).to_have_text("The run router was asked to pause.")
    container.open()
    expect_state(page, "paused")
    page.get_by_role("button", name="resume").click()
    expect_state(page, "completed")
    expect(page.locator("#verdict .verdict")).to_be_visible()
    expect(page.locator("#events .feed li").first).to_contain_text("completed")
    page.get_by_role("button", name="delete").click()
    expect(page.locator("#view")).to_contain_text("There are no runs")
    assert service.ask("GET", "/runs/router").status_code == 404


def test_a_run_is_cancelled_and_another_one_stopped(
    page: Page, service: Service, tmp_path: Path, example: Example, container: Gate
) -> None:
    for action, button, end in (("cancel", "cancel", "cancelled"), ("stop", "stop and evaluate", "completed")):
        held = {**LONG, "container__url": container.url, "run__run_id": action}
        service.run_id(sections(tmp_path, example, **held))
        page.goto(f"{service.url}/ui/runs/{action}")
        expect_state(page, "running")
        expect(page.locator("#now")).to_contain_text("in flight")
        page.get_by_role("button", name=button).click()
        expect(page.locator(".control-answer")).to_have_text(f"The run {action} was asked to {action}.")
        container.open()
        expect_state(page, end)
        assert service.request(action)["status"] == end


def test_runs_are_controlled_from_the_list(
    page: Page, service: Service, tmp_path: Path, example: Example, container: Gate
) -> None:
    held = {**LONG, "container__url": container.url}
    for name in ("first", "second"):
        service.run_id(sections(tmp_path, example, **held, run__run_id=name))
    page.goto(f"{service.url}/ui/?sort=-run")
    answer = page.locator(".control-answer")

    def press(run_id: str, button: str) -> None:
        page.get_by_role("group", name=f"control {run_id}").get_by_role("button", name=button).click()

    expect(page.get_by_role("row", name=re.compile("^first"))).to_contain_text("running")
    container.wait_for(7)
    press("second", "cancel")
    expect(answer).to_have_text("The run second was asked to cancel.")
    expect(page.get_by_role("row", name=re.compile("^second"))).to_contain_text("cancelled")
    press("first", "pause")
    expect(answer).to_have_text("The run first was asked to pause.")
    container.open()
    expect(page.get_by_role("row", name=re.compile("^first"))).to_contain_text("paused")
    press("second", "delete")
    expect(answer).to_have_text("The run second was deleted.")
    expect(page.locator("table.runs tbody th")).to_have_text(["first"])
    expect(page).to_have_url(f"{service.url}/ui/?sort=-run")
    press("first", "resume")
    expect(page.get_by_role("row", name=re.compile("^first"))).not_to_contain_text("paused")
    press("first", "cancel")
    expect(page.get_by_role("row", name=re.compile("^first"))).to_contain_text("cancelled")
    check_accessibility(page)


def test_the_page_reconnects_to_a_restarted_service_and_misses_no_event(
    browser: Browser, tmp_path: Path, example: Example, container: Gate
) -> None:
    with watched_page(browser) as page:
        with run_service(tmp_path) as service:
            bind = urlsplit(service.url).netloc
            service.run_id(sections(tmp_path, example, container__url=container.url))
            page.goto(f"{service.url}/ui/runs/router")
            container.wait_for(7)
            page.get_by_label("show").select_option("all")
            expect(page.locator("#now")).to_contain_text("in flight")
            expect(page.locator("#events .feed li").first).to_be_visible()
            before = shown_events(page)
        expect(page.locator(".connection")).to_have_text("connection lost, trying again")
        expect(page.locator("h1")).to_contain_text("router")
        container.open()
        with run_service(tmp_path, "--bind", bind) as service:
            # A run that the end of its service interrupted continues at the next start.
            service.wait("router")
            expect_state(page, "completed")
            expect(page.locator(".connection")).to_have_text("")
            expect(page.locator("#events .feed li").first).to_contain_text("completed")
            last = service.get("/runs/router/events", limit=1)["last_sequence"]
            after = shown_events(page)
            assert after[0] == last
            assert after == list(range(last, last - len(after), -1))
            assert after[-1] <= before[0] + 1 or len(after) == 200


def test_the_list_of_runs_follows_new_runs(page: Page, service: Service, tmp_path: Path, example: Example) -> None:
    page.goto(f"{service.url}/ui/")
    expect(page.locator("#view")).to_contain_text("There are no runs")
    service.run_id(sections(tmp_path, example, run__run_id="later"))
    row = page.get_by_role("row", name=re.compile("^later"))
    expect(row).to_contain_text("completed")
    expect(row.locator(".spark")).to_be_visible()
    service.ask("DELETE", "/runs/later")
    expect(page.locator("#view")).to_contain_text("There are no runs")


def test_a_run_that_is_deleted_while_it_is_shown_is_explained(
    page: Page, service: Service, tmp_path: Path, example: Example
) -> None:
    service.run_id(sections(tmp_path, example))
    service.wait("router")
    page.goto(f"{service.url}/ui/runs/router")
    expect_state(page, "completed")
    service.ask("DELETE", "/runs/router")
    page.get_by_role("link", name="Lineage").click()
    expect(page.get_by_role("alert").first).to_contain_text("router")
    page.get_by_role("link", name="All runs").click()
    expect(page.locator("#view")).to_contain_text("There are no runs")


@pytest.fixture
def protected(tmp_path: Path) -> Iterator[Service]:
    """Yield a service with a token."""
    with run_service(tmp_path, "--token-file", str(token_file(tmp_path)), token=TOKEN) as running:
        yield running


def test_the_token_is_asked_once_and_kept_in_memory_only(page: Page, protected: Service) -> None:
    page.goto(f"{protected.url}/ui/")
    dialog = page.locator("#token-dialog")
    expect(dialog).to_be_visible()
    check_accessibility(page)
    page.get_by_role("textbox", name="Token").fill("a-wrong-token")
    page.get_by_role("button", name="continue").click()
    expect(dialog.get_by_role("alert")).to_have_text("The service does not accept this token.")
    page.get_by_role("textbox", name="Token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(dialog).not_to_be_visible()
    is_shown(page)
    expect(page.locator("#view")).to_contain_text("There are no runs")
    page.get_by_role("link", name="Health").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Health")
    expect(dialog).not_to_be_visible()
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])")
    assert TOKEN not in kept
    assert TOKEN not in page.content()
    page.reload()
    expect(dialog).to_be_visible()
