"""The common part of the MLflow and W&B subscribers: one tracker run per optimization run."""

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
"""The artifacts that a tracker stores."""

DEFAULT_PROJECT = "synth-optimizers"
"""The default MLflow experiment and W&B project."""


class ForwardingSubscriber(ABC):
    """Folds events into metrics and forwards them.

    The first event opens a tracker run, which is named by the run id and found again by the key of the feed. A resumed
    run continues the same tracker run, which knows the last event that it received.
    """

    def __init__(self, config: Mapping[str, Any] | None) -> None:
        self._config = dict(flatten(config or {}))
        self._metrics: Metrics | None = None
        self._is_open = False
        self._known = -1

    def on_event(self, event: RunEvent) -> None:
        """Forward the changes of one event."""
        if self._metrics is None or not self._metrics.feed.contains(event):
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
        """End the tracker run, with the artifacts of the result if there is one. A resumed run can continue it."""
        if not self._is_open or self._metrics is None:
            return
        self._is_open = False
        ended = outcome(self._metrics.outcome, error)
        # An empty text replaces an error that an earlier process reported.
        texts = {**self._metrics.texts, "outcome": ended, "error": str(error) if ended == "failed" else "none"}
        files: list[Path] = []
        if result is not None:
            texts.update({f"best/{name}": text for name, text in result.best_candidate["payload"].items()})
            files = [path for path in (Path(result.run_dir, name) for name in ARTIFACTS) if path.exists()]
        self._end(texts, files)

    @abstractmethod
    def _open(self, feed: Feed, config: dict[str, Text]) -> int:
        """Open or continue the tracker run; return the sequence number of the last event it received, or -1."""

    @abstractmethod
    def _log(self, update: Update) -> None:
        """Forward metrics and parameters."""

    @abstractmethod
    def _end(self, texts: dict[str, Text], files: list[Path]) -> None:
        """Forward the closing texts, including the outcome, and the artifacts; end the tracker run."""


def outcome(reported: str, error: BaseException | None) -> str:
    """Return the outcome of a run: from its last event, or from an error without an event."""
    is_failure = error is not None and not isinstance(error, CancelledError)
    return "failed" if reported == "interrupted" and is_failure else reported


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Text]]:
    """Yield the values of a configuration by dotted path. Lists become JSON; unset values are left out."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value if isinstance(value, str | int | float) else json.dumps(value)
