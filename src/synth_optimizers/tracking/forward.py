"""What MLflow and W&B have in common: they forward metrics to one run of the tracker per run."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from synth_optimizers.errors import CancelledError
from synth_optimizers.events import RunEvent
from synth_optimizers.result import GepaRunResult
from synth_optimizers.tracking.metrics import Feed, Metrics, Text, Update

ARTIFACTS = ("best_candidate.json", "score_chart.svg", "result_manifest.json")
"""Files of a result that a tracker keeps."""

HOME = "synth-optimizers"
"""The experiment of MLflow and the project of W&B when none is named."""


class ForwardingSubscriber(ABC):
    """Folds events into metrics and forwards them.

    A run of the tracker is opened with the first event. It bears the run id as its name and is found again by the key
    of the feed: a resumed run continues the run of the tracker, which tells up to which event it has everything.
    """

    def __init__(self, config: Mapping[str, Any] | None) -> None:
        self._config = dict(flattened(config or {}))
        self._metrics: Metrics | None = None
        self._is_open = False
        self._known = -1

    def on_event(self, event: RunEvent) -> None:
        """Forward what the event changes."""
        if self._metrics is None or not self._metrics.feed.holds(event):
            self.close(None, None)
            self._metrics = Metrics(event)
        update = self._metrics.fold(event)
        if update is None:
            return
        if not self._is_open:
            self._known = self._open(self._metrics.feed, self._config)
            self._is_open = True
        if event.sequence_number > self._known:
            self._log(update)

    def close(self, result: GepaRunResult | None, error: BaseException | None) -> None:
        """End the run of the tracker, with the files of the result if there is one. It can be continued."""
        if not self._is_open or self._metrics is None:
            return
        self._is_open = False
        ended = outcome(self._metrics.outcome, error)
        # What an earlier process said of an error is taken back when there is none any more.
        texts = {**self._metrics.texts, "outcome": ended, "error": str(error) if ended == "failed" else "none"}
        files: list[Path] = []
        if result is not None:
            texts.update({f"best/{name}": text for name, text in result.best_candidate["payload"].items()})
            files = [path for path in (Path(result.run_dir, name) for name in ARTIFACTS) if path.exists()]
        self._end(texts, files)

    @abstractmethod
    def _open(self, feed: Feed, config: dict[str, Text]) -> int:
        """Open or continue the run of the tracker; return the number of the last event it knows, or -1."""

    @abstractmethod
    def _log(self, update: Update) -> None:
        """Forward metrics and parameters."""

    @abstractmethod
    def _end(self, texts: dict[str, Text], files: list[Path]) -> None:
        """Forward the closing texts, of which one is the outcome, and the files; end the run of the tracker."""


def outcome(told: str, error: BaseException | None) -> str:
    """Return how a run ended: as its last event tells, or by an error that no event tells of."""
    is_failure = error is not None and not isinstance(error, CancelledError)
    return "failed" if told == "interrupted" and is_failure else told


def flattened(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Text]]:
    """Yield the values of a configuration by dotted path; lists are JSON, what is not set is left out."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value if isinstance(value, str | int | float) else json.dumps(value)
