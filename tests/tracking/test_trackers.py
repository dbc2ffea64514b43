"""Trackers by name, and what is said when one cannot be used."""

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from synth_optimizers.errors import ConfigError
from synth_optimizers.tracking import (
    TRACKERS,
    MlflowSubscriber,
    OpenTelemetrySubscriber,
    WandbSubscriber,
    subscriber,
)

MODULES = {"mlflow": "mlflow", "otel": "opentelemetry.trace", "wandb": "wandb"}


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        # A client of a server makes no tables.
        ("mlflow", {"tracking_uri": "http://127.0.0.1:9"}, MlflowSubscriber),
        ("otel", {"tracer_provider": TracerProvider()}, OpenTelemetrySubscriber),
        ("wandb", {"mode": "offline"}, WandbSubscriber),
    ],
)
def test_a_tracker_is_made_by_its_name(name: str, options: dict[str, Any], kind: type) -> None:
    assert isinstance(subscriber(name, **options), kind)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"synth_optimizer_config_error: there is no tracker 'mlfow'") as refusal:
        subscriber("mlfow")
    assert all(name in refusal.value.hint for name in TRACKERS)
    assert 'pip install "synth-optimizers[mlflow]"' in refusal.value.hint


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_a_missing_package_is_refused_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    with pytest.raises(ConfigError, match="needs the package") as refusal:
        subscriber(name)
    assert refusal.value.hint == f'pip install "synth-optimizers[{name}]"'


def test_a_directory_called_like_the_package_is_not_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    with pytest.raises(ConfigError, match="needs the package wandb"):
        subscriber("wandb")


def test_no_tracker_is_imported_before_it_is_used() -> None:
    asked = "import sys, synth_optimizers.tracking; print(*{'mlflow', 'wandb', 'opentelemetry'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)  # noqa: S603
    assert told.stdout.strip() == ""
