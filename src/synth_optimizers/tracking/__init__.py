"""Subscribers that forward a run to an experiment tracker. Each needs its extra, and imports it on construction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from synth_optimizers.errors import ConfigError, error_of
from synth_optimizers.extras import install
from synth_optimizers.handle import Subscriber
from synth_optimizers.tracking.mlflow import MlflowSubscriber
from synth_optimizers.tracking.otel import OpenTelemetrySubscriber
from synth_optimizers.tracking.wandb import WandbSubscriber

__all__ = ["TRACKERS", "MlflowSubscriber", "OpenTelemetrySubscriber", "WandbSubscriber", "subscriber"]

TRACKERS: dict[str, Callable[..., Subscriber]] = {
    "mlflow": MlflowSubscriber,
    "otel": OpenTelemetrySubscriber,
    "wandb": WandbSubscriber,
}
"""Every tracker by its name, which is also the name of its extra."""


def subscriber(name: str, **options: Any) -> Subscriber:  # noqa: ANN401 (the options of the tracker)
    """Return the subscriber of a tracker by its name; `options` are the arguments of its class.

    Raises `ConfigError` for an unknown name, a missing package, or a tracker that is not configured.
    """
    if name not in TRACKERS:
        known = ", ".join(TRACKERS)
        hint = f"Use one of {known}; install its extra, such as {install('mlflow')}."
        raise error_of(ConfigError, f"{name!r} is not a tracker", hint)
    return TRACKERS[name](**options)
