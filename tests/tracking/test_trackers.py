"""Trackers by name, and the errors when one cannot be used."""

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from synth_optimizers.cli.gepa import tracker_subscribers
from synth_optimizers.errors import ConfigError
from synth_optimizers.run import GepaRun
from synth_optimizers.tracking import (
    TRACKERS,
    MlflowSubscriber,
    OpenTelemetrySubscriber,
    WandbSubscriber,
    subscriber,
)
from synth_optimizers.tracking.forward import ForwardingSubscriber, flatten

CONFIG = {
    "run": {"run_id": "router", "output_dir": "runs"},
    "container": {"url": "http://127.0.0.1:9"},
    "dataset": {"train_seeds": [0, 1, 2, 3], "heldout_seeds": [4]},
    "candidate": {"target_modules": ["router_prompt"]},
    "proposer": {"backend": "openai_compatible", "base_url": "http://127.0.0.1:9/v1", "model": "words"},
    "gepa": {"minibatch_size": 3, "max_generations": 1, "max_total_rollouts": 40},
}
MODULES = {"mlflow": "mlflow", "otel": "opentelemetry.trace", "wandb": "wandb"}


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        # The client of an MLflow server creates no tables.
        ("mlflow", {"tracking_uri": "http://127.0.0.1:9"}, MlflowSubscriber),
        ("otel", {"tracer_provider": TracerProvider()}, OpenTelemetrySubscriber),
        ("wandb", {"mode": "offline"}, WandbSubscriber),
    ],
)
def test_a_tracker_is_made_by_its_name(name: str, options: dict[str, Any], kind: type) -> None:
    assert isinstance(subscriber(name, **options), kind)


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
def test_the_command_line_gives_trackers_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    run = GepaRun.from_config(CONFIG)
    found = tracker_subscribers(sorted(TRACKERS), run)
    assert [type(each) for each in found] == [MlflowSubscriber, OpenTelemetrySubscriber, WandbSubscriber]
    for each in found:
        if isinstance(each, ForwardingSubscriber):
            assert each._config["gepa.minibatch_size"] == 3
            assert each._config == dict(flatten(run.config.to_dict()))


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"synth_optimizer_config_error: 'mlfow' is not a tracker") as refusal:
        subscriber("mlfow")
    assert all(name in refusal.value.hint for name in TRACKERS)
    assert 'pip install "synth-optimizers[mlflow]"' in refusal.value.hint


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_a_missing_package_is_refused_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    with pytest.raises(ConfigError, match="requires the package") as refusal:
        subscriber(name)
    assert refusal.value.hint == f'pip install "synth-optimizers[{name}]"'


def test_a_directory_with_the_name_of_the_package_is_not_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    with pytest.raises(ConfigError, match="requires the package wandb"):
        subscriber("wandb")


def test_no_tracker_is_imported_before_it_is_used() -> None:
    asked = "import sys, synth_optimizers.tracking; print(*{'mlflow', 'wandb', 'opentelemetry'} & set(sys.modules))"
    reported = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)  # noqa: S603
    assert reported.stdout.strip() == ""
