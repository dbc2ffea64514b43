"""What the page keeps while it changes: view, focus, typed texts and token; and what it says when something fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from service.short_runs import LONG, TINY, sections
from service.test_token import TOKEN, token_file
from support.example import Example
from support.gate import Gate
from support.polling import wait_until
from support.service import Service, run_service

from ui.browser import HOST_NAME, check_accessibility, is_shown, keep_screenshot, watched_page
from ui.conftest import ShownRuns
from ui.test_live import expect_state, shown_events, toml

CUTS_ANSWERS = """
const whole = Response.prototype.text;
Response.prototype.text = function () {
  const isCut = window.cutsAnswers && this.url.includes("/views/");
  return isCut ? Promise.reject(new TypeError("network error")) : whole.call(this);
};
"""
"""Breaks the connection in the body of every view while `cutsAnswers` is set."""


def refuse(status: int, message: str) -> Callable[[Route], None]:
    """Answer every request like a service that refuses it."""
    body = {"error": {"code": "refused", "message": message, "hint": "A hint of the test."}}
    return lambda route: route.fulfill(status=status, json=body)


def test_a_view_stays_and_continues_when_the_service_cannot_answer_for_a_while(
    page: Page, service: Service, tmp_path: Path, example: Example, container: Gate
) -> None:
    page.add_init_script(CUTS_ANSWERS)
    service.run_id(sections(tmp_path, example, container__url=container.url))
    page.goto(f"{service.url}/ui/runs/router")
    expect(page.locator("#now")).to_contain_text("in flight")
    views = re.compile("/views/runs/router")
    page.route(views, refuse(503, "the service is starting"))
    expect(page.locator(".connection")).to_have_text("the service cannot answer now, trying again")
    expect_state(page, "running")
    expect(page.locator("#now")).to_contain_text("in flight")
    page.unroute(views)
    expect(page.locator(".connection")).to_have_text("")
    page.evaluate("window.cutsAnswers = true")
    expect(page.locator(".connection")).to_have_text("connection lost, trying again")
    expect_state(page, "running")
    page.evaluate("window.cutsAnswers = false")
    expect(page.locator(".connection")).to_have_text("")
    container.open()
    expect_state(page, "completed")
    expect(page.locator("#events .feed li").first).to_contain_text("completed")


def test_a_page_that_is_opened_while_the_service_starts_shows_the_run_later(page: Page, runs: ShownRuns) -> None:
    views = re.compile("/views/")
    page.route(views, refuse(503, "the service is starting"))
    page.goto(f"{runs.service.url}/ui/runs/{runs.sprint}")
    expect(page.get_by_role("alert")).to_contain_text("the service is starting")
    page.unroute(views)
    expect_state(page, "completed")
    expect(page.locator(".problem")).to_have_count(0)


def test_a_view_of_a_queued_run_appears_when_the_run_starts(
    page: Page, service: Service, tmp_path: Path, example: Example, container: Gate
) -> None:
    held = {"container__url": container.url}
    service.run_id(sections(tmp_path, example, run__run_id="first", **held))
    service.wait("first", "running")
    service.run_id(sections(tmp_path, example, run__run_id="second", **held))
    page.goto(f"{service.url}/ui/runs/second/compare")
    expect(page.get_by_role("alert").first).to_contain_text("second")
    container.open()
    expect(page.locator("#sides")).to_be_visible()
    expect(page.locator("#view > .view > .problem")).to_have_count(0)


def test_a_run_that_was_asked_to_stop_can_still_be_cancelled(
    page: Page, service: Service, tmp_path: Path, example: Example, container: Gate
) -> None:
    service.run_id(sections(tmp_path, example, **LONG, container__url=container.url))
    page.goto(f"{service.url}/ui/runs/router")
    expect_state(page, "running")
    container.wait_for(7)
    page.get_by_role("button", name="stop and evaluate").click()
    expect(page.locator(".control-answer")).to_have_text("The run router was asked to stop.")
    page.get_by_role("button", name="cancel").click()
    expect(page.locator(".control-answer")).to_have_text("The run router was asked to cancel.")
    container.open()
    expect_state(page, "cancelled")


@pytest.mark.parametrize("where", ["on the page", "elsewhere"])
def test_the_events_of_a_deleted_run_are_not_shown_for_the_next_run_with_its_id(
    page: Page, service: Service, tmp_path: Path, example: Example, container: Gate, where: str
) -> None:
    service.run_id(sections(tmp_path, example))
    service.wait("router")
    page.goto(f"{service.url}/ui/runs/router")
    newest = page.locator("#events .feed li").first
    expect(newest).to_contain_text("completed")
    if where == "on the page":
        page.get_by_role("button", name="delete").click()
        expect(page.locator("#view")).to_contain_text("There are no runs")
    else:
        assert service.ask("DELETE", "/runs/router").is_success
    service.run_id(sections(tmp_path, example, container__url=container.url))
    container.wait_for(7)
    if where == "on the page":
        page.get_by_role("link", name="router", exact=True).click()
    else:
        tabs = page.get_by_role("navigation", name="views of the run")
        tabs.get_by_role("link", name="Lineage").click()
        expect(page.locator("#tree")).to_be_visible()
        tabs.get_by_role("link", name="Run", exact=True).click()
    expect_state(page, "running")
    page.get_by_label("show").select_option("all")

    def agree() -> bool:
        last = service.get("/runs/router/events", limit=1)["last_sequence"]
        return shown_events(page) == list(range(last, -1, -1))

    wait_until("the events of the second run", agree)


def test_more_rollouts_of_a_candidate_are_shown_without_loading_the_page_again(page: Page, runs: ShownRuns) -> None:
    best = runs.service.request(runs.sprint)["best_candidate_id"]
    page.goto(f"{runs.service.url}/ui/runs/{runs.sprint}/candidates/{best}?against=initial")
    is_shown(page)
    # A token would be in memory like this mark.
    page.evaluate("window.mark = 1")
    first = page.locator("#rollouts tbody th").first.inner_text()
    page.get_by_role("link", name="more rollouts").click()
    expect(page).to_have_url(re.compile(r"\?against=initial&cursor=[^#]+#rollouts$"))
    expect(page.locator("#rollouts tbody th").first).not_to_have_text(first)
    expect(page.locator("#rollouts")).to_be_in_viewport()
    expect(page.get_by_label("compare with")).to_have_value("initial")
    assert page.evaluate("window.mark") == 1


def test_a_run_is_submitted_over_plain_http_by_host_name_and_once(
    browser: Browser, tmp_path: Path, example: Example
) -> None:
    keys: list[str] = []

    def lose_first_answer(route: Route) -> None:
        keys.append(route.request.headers["idempotency-key"])
        if len(keys) > 1:
            route.continue_()
            return
        headers = {name: route.request.headers[name] for name in ("content-type", "idempotency-key")}
        assert service.http.post("/runs", content=route.request.post_data or "", headers=headers).status_code == 201
        route.abort()

    with run_service(tmp_path, "--allow-host", HOST_NAME) as service, watched_page(browser) as page:
        page.goto(f"http://{HOST_NAME}:{urlsplit(service.url).port}/ui/submit")
        assert page.evaluate("isSecureContext") is False
        page.route(re.compile("/runs$"), lose_first_answer)
        page.get_by_label("configuration (TOML)").fill(toml(tmp_path, example, **TINY))
        submit = page.get_by_role("button", name="submit")
        submit.click()
        expect(page.locator("#findings")).to_contain_text("The service does not answer.")
        submit.click()
        expect(page).to_have_url(re.compile("/ui/runs/router$"))
        expect_state(page, "completed")
        assert keys == keys[:1] * 2


def test_the_focus_and_typed_texts_stay_while_a_view_changes(
    page: Page, service: Service, tmp_path: Path, example: Example, container: Gate
) -> None:
    service.run_id(sections(tmp_path, example, container__url=container.url))
    page.goto(f"{service.url}/ui/runs/router")
    expect_state(page, "running")
    typed = page.get_by_label("containing")
    typed.fill("comp")
    container.open()
    expect_state(page, "completed")
    expect(typed).to_be_focused()
    expect(typed).to_have_value("comp")
    page.goto(f"{service.url}/ui/")
    rows = page.locator("table.runs tbody tr")
    for count, focused in enumerate([page.get_by_role("button", name="cost"), page.locator("#runs .scroll")], start=2):
        focused.focus()
        service.run_id(sections(tmp_path, example, run__run_id=f"run-{count}"), auto_start=False)
        expect(rows).to_have_count(count)
        expect(focused).to_be_focused()


def test_candidates_and_cells_are_links_on_the_page_and_pictures_in_the_report(page: Page, runs: ShownRuns) -> None:
    page.goto(f"{runs.service.url}/ui/runs/{runs.sprint}/lineage")
    page.locator("#tree").get_by_role("link", name=re.compile(": accepted, best")).focus()
    expect(page.locator("#tree [tabindex='0'][data-candidate]")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/candidates/"))
    page.goto(f"{runs.service.url}/ui/runs/{runs.sprint}/rows")
    cell = page.locator("[data-heat-map]").get_by_role("link", name=re.compile("^row .+: (won|lost|partly)")).first
    expect(cell).to_have_attribute("tabindex", "0")
    page.goto((runs.run_dir(runs.sprint) / "report.html").as_uri())
    expect(page.locator("svg [data-candidate]").first).to_be_visible()
    expect(page.locator("svg [tabindex]")).to_have_count(0)
    expect(page.locator("svg [data-candidate]").first).to_have_css("cursor", "auto")


def test_the_form_keeps_a_pasted_configuration_and_gets_the_focus(
    page: Page, runs: ShownRuns, tmp_path: Path, example: Example
) -> None:
    page.goto(f"{runs.service.url}/ui/")
    page.get_by_role("link", name="submit a run").click()
    expect(page.locator("#view")).to_be_focused()
    config = page.get_by_label("configuration (TOML)")
    text = toml(tmp_path, example, gepa__minibatch_size=0)
    config.fill(text)
    for width in (390, 1600):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("width => matchMedia('(max-width: 600px)').matches === (width < 600)", arg=width)
        page.get_by_role("button", name="check").click()
        expect(page.locator("#findings")).to_contain_text("gepa.minibatch_size")
        page.locator("#findings").evaluate("found => found.replaceChildren()")
    page.locator("a.skip").focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#view$"))
    page.get_by_role("button", name="check").click()
    expect(page.locator("#findings")).to_contain_text("gepa.minibatch_size")
    expect(config).to_have_value(text)


def test_warnings_are_told_from_what_prevents_a_run_and_one_source_is_used(
    page: Page, runs: ShownRuns, tmp_path: Path, example: Example
) -> None:
    page.goto(f"{runs.service.url}/ui/submit")
    config, path = page.get_by_label("configuration (TOML)"), page.get_by_label("or a file of the service")
    check, headings = page.get_by_role("button", name="check"), page.locator("#findings h2")
    config.fill(toml(tmp_path, example, gepa__minibatch_size=200))
    expect(path).to_be_disabled()
    check.click()
    expect(headings).to_have_text(["Warnings"])
    expect(page.locator("#findings p").first).to_have_text("Nothing prevents this run from starting.")
    config.fill(toml(tmp_path, example, gepa__minibatch_size=0))
    check.click()
    expect(headings.first).to_have_text("What prevents it")
    config.fill("")
    path.fill("missing.toml")
    expect(config).to_be_disabled()
    check.click()
    expect(page.locator("#findings")).to_contain_text("missing.toml")


def test_the_token_is_not_asked_again_after_the_reader_closed_the_question(page: Page, tmp_path: Path) -> None:
    with run_service(tmp_path, "--token-file", str(token_file(tmp_path)), token=TOKEN) as service:
        page.goto(f"{service.url}/ui/")
        dialog, again = page.locator("#token-dialog"), page.get_by_role("button", name="enter the token")
        for key, button in (("Escape", dialog), ("Enter", page.get_by_role("button", name="not now"))):
            expect(dialog).to_be_visible()
            button.press(key)
            expect(page.get_by_role("alert")).to_contain_text("The service needs its token.")
            expect(dialog).not_to_be_visible()
            check_accessibility(page)
            again.click()
        keep_screenshot(page, "token", tmp_path)
        page.get_by_role("textbox", name="Token").fill(TOKEN)
        page.get_by_role("button", name="continue").click()
        expect(page.locator("#view")).to_contain_text("There are no runs")


@pytest.mark.parametrize("options", [[], ["--token-file", "token"]], ids=["open", "with a token"])
def test_a_file_is_downloaded_and_a_refused_download_is_explained(
    page: Page, tmp_path: Path, example: Example, options: list[str]
) -> None:
    token_file(tmp_path)
    with run_service(tmp_path, *options, token=TOKEN if options else None) as service:
        service.run_id(sections(tmp_path, example, **TINY))
        service.wait("router")
        page.goto(f"{service.url}/ui/runs/router/settings")
        if options:
            page.get_by_role("textbox", name="Token").fill(TOKEN)
            page.keyboard.press("Enter")
        link = page.get_by_role("link", name="events.jsonl", exact=True)
        with page.expect_download() as started:
            link.click()
        assert started.value.suggested_filename == "events.jsonl"
        stored = tmp_path / "runs" / "router" / "events.jsonl"
        assert started.value.path().read_bytes() == stored.read_bytes()
        files = re.compile("/artifacts/")
        page.route(files, refuse(404, "there is no such file"))
        link.click()
        note = page.locator("#artifacts th .note")
        # The answer to HEAD has no body, and so no message.
        expect(note).to_have_text(re.compile("there is no such file" if options else "404|there is no such file"))
        page.unroute(files)
        page.route(files, lambda route: route.abort())
        link.click()
        expect(note).to_have_text("The service does not answer.")


def event(number: int, message: str) -> dict[str, object]:
    """Return an event as the service sends it."""
    return {"sequence_number": number, "ts": "2026-01-01T00:00:00Z", "type": "run.note", "message": message}


def test_events_show_hidden_characters_and_a_late_page_reads_only_the_newest(page: Page, runs: ShownRuns) -> None:
    asked: list[int | None] = []
    last = 10

    def answer(route: Route) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        after = int(query["after"][0]) if "after" in query else None
        asked.append(after)
        first = 0 if after is None else after + 1
        numbers = range(first, min(last, first + int(query["limit"][0]) - 1) + 1)
        items = [event(number, f"event {number} \x1b[31m\u202e\u200b\u061c\u2028\U000e0041 end") for number in numbers]
        page_of = {"items": items, "next_after": numbers[-1] if items else after, "last_sequence": last}
        route.fulfill(json={**page_of, "is_terminal": False})

    page.route(re.compile("/events"), answer)
    page.goto(f"{runs.service.url}/ui/runs/{runs.sprint}")
    newest = page.locator("#events .feed li").first
    signs = "\u241b[31m\u27e8U+202E\u27e9\u27e8U+200B\u27e9\u27e8U+061C\u27e9\u27e8U+2028\u27e9\u27e8U+E0041\u27e9 end"
    expect(newest).to_contain_text(f"event 10 {signs}")
    asked.clear()
    last = 1_000_000
    expect(newest).to_contain_text("event 1000000 ")
    reads = [after for after in asked if after is not None and after < last]
    assert reads[-3:] == [10, last - 2000, last - 1000]
    assert 998_001 not in reads


def test_the_order_of_the_list_is_a_part_of_its_address(page: Page, runs: ShownRuns) -> None:
    page.goto(f"{runs.service.url}/ui/?sort=-run")
    names = page.locator("table.runs tbody th")
    falling = [runs.sprint, runs.reference, runs.cancelled]
    expect(names).to_have_text(falling)
    page.get_by_role("button", name="run", exact=True).click()
    expect(page).to_have_url(re.compile(r"/ui/\?sort=run$"))
    expect(names).to_have_text(falling[::-1])
    page.get_by_label("state").select_option("completed")
    page.get_by_role("button", name="filter").click()
    expect(page).to_have_url(re.compile(r"/ui/\?state=completed&sort=run$"))
    expect(names).to_have_text([runs.reference, runs.sprint])
    page.reload()
    expect(names).to_have_text([runs.reference, runs.sprint])
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("run")
