"""A service with a root of configurations, which several tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.places import small_config
from support.example import Example
from support.service import serving

from service.places import CANARY, Place


@pytest.fixture(scope="session")
def place(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Yield a service whose root holds a good configuration, and whose run has ended."""
    outside = tmp_path_factory.mktemp("paths").resolve()
    root = outside / "root"
    (root / "deeper").mkdir(parents=True)
    small_config(root, example)
    small_config(root / "deeper", example, run__run_id="deeper")
    (outside / "secret.toml").write_text(f'{CANARY} = "x"\n')
    (outside / "root-other").mkdir()
    (outside / "root-other" / "secret.toml").write_text(f'{CANARY} = "x"\n')
    with serving(outside, "--config-root", "root") as service:
        service.wait(service.run_id(Path("gepa.toml")), "completed")
        yield Place(root, outside, service)
