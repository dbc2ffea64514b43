"""`synth-optimizers ui` without a service: directories, databases, and runs that are damaged, old or still running."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from playwright.sync_api import Page, expect
from service.short_runs import config_file
from support.example import Example
from support.gate import Gate
from support.polling import WAIT_TIMEOUT_SECONDS
from support.service import run_service

from ui.browser import check_accessibility, is_shown
from ui.conftest import ShownRuns

OLD_RUNS = Path(__file__).parents[2] / "rust/crates/synth_e2e/tests/formats/v1"
COMPLETE = ("tickets", "cut-log", "earlier-version")
"""The runs of `mixed` whose views can be read."""
UNREADABLE = ("not-a-database", "half-written")
COMMAND = [sys.executable, "-m", "synth_optimizers.cli"]


@contextlib.contextmanager
def viewer(place: Path) -> Iterator[str]:
    """Serve the page of a place and yield its address."""
    process = subprocess.Popen(  # noqa: S603 (the program under test)
        [*COMMAND, "ui", str(place), "--json"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, encoding="utf-8"
    )
    try:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            with contextlib.suppress(json.JSONDecodeError):
                yield str(json.loads(text)["url"])
                return
        raise AssertionError("the viewer did not start")
    finally:
        process.terminate()
        process.wait(WAIT_TIMEOUT_SECONDS)
        assert process.stdout is not None
        process.stdout.close()


def test_an_output_directory_a_run_directory_and_a_database_are_shown(page: Page, runs: ShownRuns) -> None:
    for place in (runs.place / "runs", runs.run_dir(runs.sprint), runs.place / "service.sqlite"):
        with viewer(place) as url:
            page.goto(url)
            is_shown(page)
            if place.name != runs.sprint:
                page.get_by_role("link", name=runs.sprint, exact=True).click()
            expect(page.locator("h1")).to_have_text(f"{runs.sprint} completed")
            expect(page.locator("#chart svg.synth-picture")).to_be_visible()
            expect(page.get_by_role("button", name="delete")).to_have_count(0)
            page.get_by_role("link", name="Lineage").click()
            expect(page.locator("#tree [data-candidate]").first).to_be_visible()
            expect(page.get_by_role("link", name="submit a run")).to_have_count(0)


@pytest.fixture
def mixed(tmp_path: Path, runs: ShownRuns) -> Path:
    """Return an output directory with a good run, damaged ones, a half-written one and one of an earlier version."""
    place = tmp_path / "runs"
    shutil.copytree(runs.run_dir(runs.sprint), place / "tickets")
    for name in ("no-database", "not-a-database", "cut-database", "cut-log"):
        shutil.copytree(runs.run_dir(runs.sprint), place / name)
    (place / "no-database" / "workspace.sqlite").unlink()
    (place / "not-a-database" / "workspace.sqlite").write_bytes(b"this is no database, but it is long enough" * 100)
    database = place / "cut-database" / "workspace.sqlite"
    database.write_bytes(database.read_bytes()[: database.stat().st_size // 2])
    log = place / "cut-log" / "events.jsonl"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    (place / "empty").mkdir()
    (place / "half-written").mkdir()
    (place / "half-written" / "workspace.sqlite").touch()
    shutil.copytree(OLD_RUNS / "completed", place / "earlier-version")
    return place


def test_damaged_half_written_and_old_runs_are_explained_and_the_others_are_shown(page: Page, mixed: Path) -> None:
    views = ("", "/lineage", "/rows", "/turns", "/settings", "/health", "/rollouts/1", "/compare?other=tickets")
    with viewer(mixed) as url:
        page.goto(url)
        is_shown(page)
        check_accessibility(page)
        listed = page.locator("table.runs tbody th").all_inner_texts()
        assert set(listed) == {run_dir.name for run_dir in mixed.iterdir() if run_dir.name != "empty"}
        for name in listed:
            for view in views:
                page.goto(urljoin(url, f"/ui/runs/{name}{view}"))
                is_shown(page)
                alerts = page.locator("main").get_by_role("alert").all_inner_texts()
                assert all(text.strip() for text in alerts), (name, view)
                if name in COMPLETE:
                    expect(page.locator("#view > .view > .problem"), f"{name}{view}").to_have_text([])
                    expect(page.locator("main h1"), f"{name}{view}").to_have_text(f"{name} completed")
                elif name in UNREADABLE:
                    # A view says what is wrong, unless it needs no database.
                    assert alerts or view in ("", "/settings", "/health"), (name, view)
                assert "panic" not in page.locator("main").inner_text()
                expect(page.get_by_role("link", name="Runs").first).to_be_visible()
        page.get_by_role("link", name="Runs").first.click()
        page.get_by_role("link", name="tickets", exact=True).click()
        expect(page.locator("#chart svg.synth-picture")).to_be_visible()


def test_a_run_of_another_process_is_followed_to_its_end_and_its_deletion_is_explained(
    page: Page, tmp_path: Path, example: Example, container: Gate
) -> None:
    config = tmp_path / config_file(tmp_path, example, container__url=container.url)
    with (tmp_path / "run.log").open("w", encoding="utf-8") as log:
        run = subprocess.Popen([*COMMAND, "gepa", "run", "--config", str(config)], cwd=tmp_path, stdout=log, stderr=log)  # noqa: S603
    try:
        container.wait_for(7)
        with viewer(tmp_path / "runs") as url:
            page.goto(url)
            page.get_by_role("link", name="router", exact=True).click()
            expect(page.locator("h1")).to_have_text("router running")
            expect(page.locator("#now")).to_contain_text("in flight")
            container.open()
            expect(page.locator("h1")).to_have_text("router completed")
            expect(page.locator("#verdict .verdict")).to_be_visible()
            assert run.wait(WAIT_TIMEOUT_SECONDS) == 0
            shutil.rmtree(tmp_path / "runs" / "router")
            page.get_by_role("link", name="Rows", exact=True).click()
            expect(page.get_by_role("alert").first).to_contain_text("router")
            page.get_by_role("link", name="All runs").click()
            expect(page.locator("#view")).to_contain_text("There are no runs")
    finally:
        run.kill()
        run.wait()


def test_the_database_of_a_running_service_is_shown(page: Page, tmp_path: Path, example: Example) -> None:
    with run_service(tmp_path) as service, viewer(tmp_path / "service.sqlite") as url:
        service.run_id(config_file(tmp_path, example))
        page.goto(url)
        expect(page.get_by_role("row", name="router")).to_contain_text("completed")


def test_a_page_without_a_service_has_no_form(page: Page, runs: ShownRuns) -> None:
    with viewer(runs.run_dir(runs.sprint)) as url:
        page.goto(urljoin(url, "/ui/submit"))
        expect(page.get_by_role("alert")).to_contain_text("it cannot submit one")
        expect(page.locator("textarea")).to_have_count(0)
        check_accessibility(page)
        page.get_by_role("link", name="All runs").click()
        expect(page.get_by_role("link", name=runs.sprint, exact=True)).to_be_visible()


def test_the_viewer_answers_only_its_own_page_and_reads_only_the_runs_of_its_place(
    tmp_path: Path, runs: ShownRuns
) -> None:
    place = tmp_path / "runs"
    shutil.copytree(runs.run_dir(runs.sprint), place / "tickets")
    shutil.copytree(runs.run_dir(runs.sprint), tmp_path / "elsewhere" / "tickets")
    (tmp_path / "secret.txt").write_text("a secret beside the runs")
    with viewer(place) as url, httpx.Client(base_url=urljoin(url, "/"), trust_env=False) as http:
        assert http.get("/views/runs/tickets").status_code == 200
        for headers in ({"host": "example.invalid"}, {"origin": "http://example.invalid"}):
            assert http.get("/views/runs/tickets", headers=headers).status_code == 403, headers
        for path in (
            "/runs/tickets/artifacts/..%2f..%2fsecret.txt",
            "/runs/tickets/artifacts/%2e%2e/%2e%2e/secret.txt",
            "/runs/..%2felsewhere%2ftickets/artifacts/manifest.json",
            "/views/runs/..%2felsewhere%2ftickets",
            "/runs/%2e%2e/events",
            "/ui/assets/..%2f..%2fCargo.toml",
        ):
            answer = http.get(path)
            assert answer.status_code in (400, 404), (path, answer.status_code)
            assert "secret beside" not in answer.text
        for method in ("POST", "PUT", "DELETE"):
            assert http.request(method, "/runs/tickets").status_code in (404, 405)


def test_the_viewer_refuses_an_address_that_others_reach(runs: ShownRuns) -> None:
    for bind in ("0.0.0.0:0", "[::]:0"):
        ended = subprocess.run(  # noqa: S603 (the program under test)
            [*COMMAND, "ui", str(runs.place / "runs"), "--bind", bind],
            capture_output=True,
            text=True,
            timeout=WAIT_TIMEOUT_SECONDS,
            check=False,
        )
        assert ended.returncode == 2, ended
        assert "can be reached from other machines" in ended.stderr
