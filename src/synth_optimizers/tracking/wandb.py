"""Forwards a run to Weights & Biases."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from synth_optimizers.errors import ConfigError, error_of
from synth_optimizers.extras import load
from synth_optimizers.tracking.forward import HOME, ForwardingSubscriber
from synth_optimizers.tracking.metrics import SEQUENCE_NUMBER, Feed, Text, Update

_AT_HOME = ("offline", "disabled", "dryrun")
"""Modes that need no account."""

_LEFT_OUT = (
    "silent",
    "disable_code",
    "disable_git",
    "disable_job_creation",
    "x_disable_stats",
    "x_disable_meta",
    "x_disable_machine_info",
)
"""Settings of W&B that keep it from talking and from telling about the machine."""


class WandbSubscriber(ForwardingSubscriber):
    """Makes one W&B run per run, with the run id as its name.

    `project`, `entity`, `mode` and `directory` are where it goes; without them W&B's own settings hold
    (`WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_MODE`, `WANDB_DIR`), and the project is `synth-optimizers` if nothing names
    one. `config` becomes the run's config, such as `run.config.to_dict()`; `init` holds more arguments of `wandb.init`.

    A run that is resumed online continues its W&B run. Offline, each process writes the whole run into a directory of
    its own under the same W&B id; the newest one is the one to sync.

    Only metrics, texts and files of the run are sent: no code, no console output, no measurements of the machine, and
    no error reports unless `WANDB_ERROR_REPORTING` says otherwise.
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
        # It is read when wandb is imported.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._wandb = load("wandb", "init", extra="wandb", purpose="tracking with wandb")
        self._mode = mode or os.environ.get("WANDB_MODE") or "online"
        if self._mode not in _AT_HOME and not self._is_logged_in():
            hint = "Run `wandb login`, or set WANDB_MODE=offline and `wandb sync` later."
            raise error_of(ConfigError, "W&B has no API key", hint)
        self._arguments = {
            "project": project or os.environ.get("WANDB_PROJECT") or HOME,
            "entity": entity,
            "mode": self._mode,
            "dir": directory,
            **(init or {}),
        }
        self._run: Any = None

    def _is_logged_in(self) -> bool:
        # W&B would ask for a key on the terminal, in the middle of the run. Within a run of its own it needs none.
        return self._wandb.run is not None or bool(self._wandb.login(prompt=False, verify=False))

    def _open(self, feed: Feed, config: dict[str, Text]) -> int:
        settings = self._wandb.Settings(**dict.fromkeys(_LEFT_OUT, True), console="off", x_save_requirements=False)
        # Nobody can look up what an earlier offline part has: a resumed run is written whole, into a new directory.
        resume = None if self._mode in _AT_HOME else "allow"
        named = {"id": feed.key, "name": feed.run_id, "resume": resume, "reinit": "create_new", "settings": settings}
        self._run = self._wandb.init(config=config, **{**named, **self._arguments})
        return int(self._run.summary.get(SEQUENCE_NUMBER, -1))

    def _log(self, update: Update) -> None:
        if update.params:
            self._run.config.update(update.params, allow_val_change=True)
        # A continued run begins one step after its last one, and W&B drops what lies before.
        self._run.log(update.metrics, step=max(update.step, self._run.step))

    def _end(self, texts: dict[str, Text], files: list[Path]) -> None:
        self._run.summary.update(texts)
        for path in files:
            # A copy, because the run's own directory may be gone when an offline run is synced.
            copied = shutil.copy(path, self._run.dir)
            self._run.save(copied, base_path=self._run.dir, policy="now")
        self._run.finish(exit_code=0 if texts["outcome"] == "finished" else 1)
        self._run = None
