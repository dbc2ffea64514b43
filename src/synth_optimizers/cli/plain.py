"""The view of a run where there is no terminal: one line per event that matters, and a line now and then in a wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from synth_optimizers.cli.output import say
from synth_optimizers.cli.words import span

if TYPE_CHECKING:
    from synth_optimizers.cli.progress import Line, Progress

FIRST_WAIT = 10.0
LONGEST_WAIT = 60.0


class PlainView:
    """Writes lines to stderr, each with the time of the run before it."""

    def __init__(self, run: Progress, clock: Callable[[], float] = time.time) -> None:
        self.run = run
        self.clock = clock
        self.begun = self.quiet_since = clock()
        self.patience = FIRST_WAIT

    def start(self) -> None:
        """Begin; nothing to draw yet."""

    def tell(self, line: Line) -> None:
        """Write a line."""
        now = self.clock()
        say(f"{span(self.run.elapsed(now)):>8}  {line.text}")
        self.quiet_since, self.patience = now, FIRST_WAIT

    def notice(self, text: str) -> None:
        """Write a sentence for the person who waits."""
        say(text)

    def tick(self, now: float) -> None:
        """Say what is being waited for when nothing was said for a while; less often the longer it takes."""
        if now - self.quiet_since < self.patience:
            return
        self.quiet_since, self.patience = now, min(self.patience * 3, LONGEST_WAIT)
        elapsed = self.run.elapsed(now) or now - self.begun
        for doing in self.run.doing(now):
            say(f"{span(elapsed):>8}  … {doing}")

    def hang_up(self) -> None:
        """Go on: lines go to a file or a pipe, and whatever cannot be written is not said."""

    def close(self, lines: list[tuple[str, str]]) -> None:
        """Write the summary."""
        for label, text in lines:
            say(f"{label:<12}{text}".rstrip())


class QuietView(PlainView):
    """Writes nothing but what the person asked for by a signal."""

    def tell(self, line: Line) -> None:
        """Keep the line to itself."""

    def tick(self, now: float) -> None:
        """Keep quiet."""

    def close(self, lines: list[tuple[str, str]]) -> None:
        """Keep quiet."""
