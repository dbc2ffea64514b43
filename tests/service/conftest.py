"""Services in temporary directories, and example servers that are slow or gated by the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.configs import small_config
from support.example import Example, serve_example
from support.gate import Gate, gated_container, gated_proposer
from support.service import Service, run_service

from service.config_root import CANARY, ConfigRoot
from service.short_runs import TINY, config_file, feed, sections


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Yield a service whose database and configurations are in `tmp_path`."""
    with run_service(tmp_path) as running:
        yield running


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """Return the path of a queue database; the first call creates it."""
    return tmp_path / "service.sqlite"


@pytest.fixture(scope="session")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """Yield servers whose rollouts are slow enough to observe an active run."""
    with serve_example(tmp_path_factory.mktemp("slow"), delay=0.1) as running:
        yield running


@pytest.fixture
def container(example: Example) -> Iterator[Gate]:
    """Yield a container that answers the first rollout, and the others once the test opens its gate."""
    with gated_container(example) as held:
        yield held


@pytest.fixture
def proposer(example: Example) -> Iterator[Gate]:
    """Yield a proposer that answers once the test opens its gate."""
    with gated_proposer(example) as held:
        yield held


@pytest.fixture(scope="session")
def done(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service with two completed and five cancelled runs; tests must not change it."""
    place = tmp_path_factory.mktemp("done")
    with run_service(place) as running:
        running.run_id(config_file(place, example), priority=1)
        assert running.wait("router")["status"] == "completed"
        running.run_id(sections(place, example, run__run_id="other", **TINY))
        assert running.wait("other")["status"] == "completed"
        for number in range(5):
            running.run_id(sections(place, example, run__run_id=f"c{number}"), auto_start=False)
            assert running.ask("POST", f"/runs/c{number}/cancel", {}).status_code == 202
        yield running


@pytest.fixture(scope="session")
def uninterrupted(done: Service) -> dict[str, Any]:
    """Return the best candidate and the events of an uninterrupted run."""
    return {"best": done.request("router")["best_candidate_id"], "feed": feed(done, "router")}


@pytest.fixture(scope="session")
def place(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfigRoot]:
    """Yield a service whose config root holds a valid configuration with a completed run."""
    outside = tmp_path_factory.mktemp("paths").resolve()
    root = outside / "root"
    (root / "deeper").mkdir(parents=True)
    small_config(root, example)
    small_config(root / "deeper", example, run__run_id="deeper")
    (outside / "secret.toml").write_text(f'{CANARY} = "x"\n')
    (outside / "root-other").mkdir()
    (outside / "root-other" / "secret.toml").write_text(f'{CANARY} = "x"\n')
    with run_service(outside, "--config-root", "root") as service:
        service.wait(service.run_id(Path("gepa.toml")), "completed")
        yield ConfigRoot(root, outside, service)
