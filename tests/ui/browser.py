"""A page in Chromium that fails its test on console errors and on requests to other hosts."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, Request, expect

WIDE, NARROW = 1600, 390
# A page that waits for a run needs more patience than the default of five seconds.
expect.set_options(timeout=30_000)

HOST_NAME = "synth.test"
"""Another name of this machine. Browsers trust plain HTTP by this name less than that of a loopback address."""

# The browser writes these when an answer has an error status or a server is down, which tests cause on purpose.
EXPECTED_MESSAGES = re.compile(r"^Failed to load resource: ")


def launch(playwright: Playwright) -> Browser:
    """Start the Chromium of the distribution."""
    program = shutil.which("chromium")
    if program is None:
        raise RuntimeError("chromium is missing: `make chromium` installs it")
    # The sandbox of Chromium refuses to run for root, who runs the tests in a container.
    names = f"--host-resolver-rules=MAP {HOST_NAME} 127.0.0.1"
    return playwright.chromium.launch(executable_path=program, chromium_sandbox=os.getuid() != 0, args=[names])


@contextlib.contextmanager
def watched_page(
    browser: Browser, *, width: int = WIDE, scheme: Literal["light", "dark"] = "light", base_url: str | None = None
) -> Iterator[Page]:
    """Open a page. At the end it must have had no console error, no exception and no request to another host."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, base_url=base_url, service_workers="block"
    )
    page = context.new_page()
    found: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not EXPECTED_MESSAGES.match(message.text):
            found.append(f"console: {message.text}")

    def on_request(request: Request) -> None:
        if not re.match(
            rf"(http://(127\.0\.0\.1|{HOST_NAME}):\d+/|data:,$|blob:http://127\.0\.0\.1:|file://)", request.url
        ):
            found.append(f"request: {request.url[:200]}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: found.append(f"exception: {error}"))
    page.on("request", on_request)
    page.on("dialog", lambda dialog: dialog.accept())
    try:
        yield page
        assert found == []
    finally:
        context.close()


def check_accessibility(page: Page) -> None:
    """Check that axe-core finds nothing serious, and that nothing is wider than the window."""
    findings = Axe().run(page).response["violations"]
    serious = [
        f"{finding['id']}: {finding['help']} {[node['html'][:160] for node in finding['nodes'][:3]]}"
        for finding in findings
        if finding["impact"] in ("serious", "critical")
    ]
    assert serious == []
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0, f"{page.url} is {overflow} pixels wider than the window"


def keep_screenshot(page: Page, name: str, directory: Path, *, full_page: bool = True) -> None:
    """Make a screenshot of the whole page, or of the window; SYNTH_UI_SCREENSHOTS names a directory that keeps it."""
    place = Path(os.environ.get("SYNTH_UI_SCREENSHOTS") or directory)
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{name}.png"
    page.screenshot(path=path, full_page=full_page)
    assert path.stat().st_size > 5_000


def is_shown(page: Page) -> None:
    """Wait until the page shows the view of its address."""
    expect(page.locator("#view > .view, #view > div")).to_have_count(1)
    expect(page.locator("#view[aria-busy]")).to_have_count(0)
    expect(page.get_by_text("Reading the events.")).to_have_count(0)
