"""Forwards a run to Weights & Biases."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from synth_optimizers.errors import ConfigError, error_of
from synth_optimizers.extras import load
from synth_optimizers.tracking.forward import DEFAULT_PROJECT, ForwardingSubscriber
from synth_optimizers.tracking.metrics import SEQUENCE_NUMBER, Feed, Text, Update

_OFFLINE_MODES = ("offline", "disabled", "dryrun")
"""Modes that need no account."""

_PRIVACY_SETTINGS = (
    "silent",
    "disable_code",
    "disable_git",
    "disable_job_creation",
    "x_disable_stats",
    "x_disable_meta",
    "x_disable_machine_info",
)
"""Settings that silence W&B and keep it from collecting data about the machine."""


class WandbSubscriber(ForwardingSubscriber):
    """Makes one W&B run per run, with the run id as its name.

    `project`, `entity`, `mode` and `directory` select where it is stored. Without them, W&B's own settings apply
    (`WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_MODE`, `WANDB_DIR`); the default project is `synth-optimizers`. `config`
    becomes the run's config, such as `run.config.to_dict()`; `init` holds more arguments of `wandb.init`.

    A run that is resumed online continues its W&B run. Offline, each process writes the whole run into its own
    directory under the same W&B id; sync the newest one.

    Only metrics, texts and artifacts of the run are sent: no code, no console output, no measurements of the machine,
    and no error reports unless `WANDB_ERROR_REPORTING` says otherwise.
    """

    def __init__(
        self,
        *,
        project: str | None = None,
        entity: str | None = None,
        mode: str | None = None,
        directory: str | os.PathLike[str] | None = None,
        config: Mapping[str, Any] | None = None,
        init: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(config)
        # wandb reads the variable on import.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._wandb = load("wandb", "init", extra="wandb", purpose="tracking with wandb")
        self._mode = mode or os.environ.get("WANDB_MODE") or "online"
        if self._mode not in _OFFLINE_MODES and not self._is_logged_in():
            hint = "Run `wandb login`, or set WANDB_MODE=offline and `wandb sync` later."
            raise error_of(ConfigError, "W&B has no API key", hint)
        self._arguments = {
            "project": project or os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT,
            "entity": entity,
            "mode": self._mode,
            "dir": directory,
            **(init or {}),
        }
        self._run: Any = None

    def _is_logged_in(self) -> bool:
        # W&B would prompt for a key on the terminal, in the middle of the run. Within an existing W&B run it needs
        # none.
        return self._wandb.run is not None or bool(self._wandb.login(prompt=False, verify=False))

    def _open(self, feed: Feed, config: dict[str, Text]) -> int:
        settings = self._wandb.Settings(
            **dict.fromkeys(_PRIVACY_SETTINGS, True), console="off", x_save_requirements=False
        )
        # An offline run cannot look up its earlier parts, so a resumed run is written whole into a new directory.
        resume = None if self._mode in _OFFLINE_MODES else "allow"
        named = {"id": feed.key, "name": feed.run_id, "resume": resume, "reinit": "create_new", "settings": settings}
        self._run = self._wandb.init(config=config, **{**named, **self._arguments})
        return int(self._run.summary.get(SEQUENCE_NUMBER, -1))

    def _log(self, update: Update) -> None:
        if update.params:
            self._run.config.update(update.params, allow_val_change=True)
        # A continued run begins one step after its last one, and W&B drops earlier steps.
        self._run.log(update.metrics, step=max(update.step, self._run.step))

    def _end(self, texts: dict[str, Text], files: list[Path]) -> None:
        self._run.summary.update(texts)
        for path in files:
            # Copied, because the run directory may be deleted before an offline run is synced.
            copied = shutil.copy(path, self._run.dir)
            self._run.save(copied, base_path=self._run.dir, policy="now")
        self._run.finish(exit_code=0 if texts["outcome"] == "completed" else 1)
        self._run = None
