"""A browser, and a service with real runs to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from service.short_runs import sections
from support.example import Example
from support.gate import Gate, gated_container
from support.service import Service, run_service

from ui.browser import launch, watched_page


@dataclass(frozen=True)
class ShownRuns:
    """A service with a completed search in sprints, a completed reference search and a cancelled run."""

    service: Service
    place: Path
    sprint: str = "tickets"
    reference: str = "reference"
    cancelled: str = "cancelled"

    def run_dir(self, run_id: str) -> Path:
        """Return the directory of a run."""
        return self.place / "runs" / run_id


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Yield Chromium, started once."""
    with sync_playwright() as playwright:
        running = launch(playwright)
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Yield a wide page in light colours."""
    with watched_page(browser) as opened:
        yield opened


@pytest.fixture(scope="session")
def runs(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownRuns]:
    """Yield a service with completed runs; tests must not change it."""
    place = tmp_path_factory.mktemp("ui")
    with run_service(place) as service:
        shown = ShownRuns(service, place)
        more = {"dataset__train_seeds": list(range(48)), "dataset__heldout_seeds": list(range(24))}
        sprint = {**more, "gepa__search": "sprint", "gepa__max_total_rollouts": 500, "gepa__max_generations": None}
        service.run_id(sections(place, example, run__run_id=shown.sprint, **sprint))
        service.run_id(sections(place, example, run__run_id=shown.reference, **more))
        service.run_id(sections(place, example, run__run_id=shown.cancelled), auto_start=False)
        assert service.ask("POST", f"/runs/{shown.cancelled}/cancel", {}).status_code == 202
        assert service.wait(shown.sprint)["status"] == "completed"
        assert service.wait(shown.reference)["status"] == "completed"
        yield shown


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Yield a service whose database and runs are in `tmp_path`."""
    with run_service(tmp_path) as running:
        yield running


@pytest.fixture
def container(example: Example) -> Iterator[Gate]:
    """Yield a container that answers the first six rollouts, and the others once the test opens its gate."""
    with gated_container(example, free=6) as held:
        yield held
