"""Forwards a run to MLflow."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from synth_optimizers.extras import load
from synth_optimizers.tracking.forward import DEFAULT_PROJECT, ForwardingSubscriber
from synth_optimizers.tracking.metrics import SEQUENCE_NUMBER, Feed, Text, Update

_RUN_ID_TAG = "synth_optimizers.run_id"
_KEY_TAG = "synth_optimizers.key"
_STATUS = {"completed": "FINISHED", "failed": "FAILED", "cancelled": "KILLED", "interrupted": "KILLED"}
_INVALID_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9_\-. :/]")
"""Characters that MLflow rejects in names; model names, which price settings contain, may have them."""
_MAX_PARAMS_PER_BATCH = 100
"""The limit of MLflow per batch."""


class MlflowSubscriber(ForwardingSubscriber):
    """Makes one MLflow run per run, named by the run id and tagged `synth_optimizers.run_id`.

    `tracking_uri` and `experiment` select where it is stored. Without them, MLflow's own settings apply
    (`MLFLOW_TRACKING_URI`, `MLFLOW_EXPERIMENT_NAME`); the default experiment is `synth-optimizers`. `config` is logged
    as parameters, such as `run.config.to_dict()`.

    MLflow's own usage reports are disabled unless `MLFLOW_DISABLE_TELEMETRY` says otherwise.
    """

    def __init__(
        self,
        *,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(config)
        # MLflow reads the variable on import.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        needed = {"extra": "mlflow", "purpose": "tracking with mlflow"}
        self._client = load("mlflow", "MlflowClient", **needed).MlflowClient(tracking_uri=tracking_uri)
        self._entities = load("mlflow.entities", "Metric", **needed)
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or DEFAULT_PROJECT
        self._run_id = ""

    def _open(self, feed: Feed, config: dict[str, Text]) -> int:
        known = self._client.get_experiment_by_name(self._experiment)
        place = known.experiment_id if known else self._client.create_experiment(self._experiment)
        query = f"tags.`{_KEY_TAG}` = '{feed.key}'"
        if found := self._client.search_runs([place], filter_string=query, max_results=1):
            self._run_id = found[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
            return int(found[0].data.metrics.get(SEQUENCE_NUMBER, -1))
        tags = {_RUN_ID_TAG: feed.run_id, _KEY_TAG: feed.key}
        self._run_id = self._client.create_run(place, run_name=feed.run_id, tags=tags).info.run_id
        params = self._as_params(config)
        for start in range(0, len(params), _MAX_PARAMS_PER_BATCH):
            self._client.log_batch(self._run_id, params=params[start : start + _MAX_PARAMS_PER_BATCH])
        return -1

    def _log(self, update: Update) -> None:
        point = [
            self._entities.Metric(name, value, update.time_ms, update.step) for name, value in update.metrics.items()
        ]
        self._client.log_batch(self._run_id, metrics=point, params=self._as_params(update.params))

    def _end(self, texts: dict[str, Text], files: list[Path]) -> None:
        for name, text in texts.items():
            self._client.set_tag(self._run_id, f"summary/{name}", text)
        for path in files:
            self._client.log_artifact(self._run_id, str(path))
        self._client.set_terminated(self._run_id, _STATUS[str(texts["outcome"])])

    def _as_params(self, values: Mapping[str, Text]) -> list[Any]:
        return [
            self._entities.Param(_INVALID_NAME_CHARACTERS.sub("_", name), str(value)) for name, value in values.items()
        ]
