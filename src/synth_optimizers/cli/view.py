"""What shows a run to a person: nothing, lines, or a live view on a terminal."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from synth_optimizers.cli.output import is_terminal, say
from synth_optimizers.cli.progress import Progress, Weight
from synth_optimizers.cli.words import span

FIRST_WAIT = 10.0
LONGEST_WAIT = 60.0


class View:
    """Shows nothing but what the person asked for by a signal; other views show more."""

    def start(self) -> None:
        """Begin to draw."""

    def tell(self, weight: Weight, text: str) -> None:
        """Show one line."""

    def notice(self, text: str) -> None:
        """Show a sentence for the person who waits."""
        say(text)

    def tick(self, now: float) -> None:
        """Let time pass."""

    def hang_up(self) -> None:
        """Draw no more: the terminal is gone. What goes to a file or a pipe goes on."""

    def close(self, lines: list[tuple[str, str]]) -> None:
        """Show the summary; nothing comes after it."""


class PlainView(View):
    """Writes lines to stderr, each with the time of the run before it, and one now and then in a wait."""

    def __init__(self, run: Progress, clock: Callable[[], float] = time.time) -> None:
        self.run = run
        self.clock = clock
        self.begun = self.quiet_since = clock()
        self.patience = FIRST_WAIT

    def tell(self, weight: Weight, text: str) -> None:  # noqa: ARG002 (every line is written)
        """Write a line."""
        now = self.clock()
        say(f"{span(self.run.elapsed(now)):>8}  {text}")
        self.quiet_since, self.patience = now, FIRST_WAIT

    def tick(self, now: float) -> None:
        """Say what is being waited for when nothing was said for a while; less often the longer it takes."""
        if now - self.quiet_since < self.patience:
            return
        self.quiet_since, self.patience = now, min(self.patience * 3, LONGEST_WAIT)
        elapsed = self.run.elapsed(now) or now - self.begun
        for doing in self.run.doing(now):
            say(f"{span(elapsed):>8}  … {doing}")

    def close(self, lines: list[tuple[str, str]]) -> None:
        """Write the summary."""
        for label, text in lines:
            say(f"{label:<12}{text}".rstrip())


def view_for(run: Progress, settings: Mapping[str, Any], *, quiet: bool, waiting: Callable[[], int | None]) -> View:
    """Choose the view: nothing, a live one on a terminal, lines otherwise."""
    if quiet:
        return View()
    if not is_terminal(sys.stderr):
        return PlainView(run)
    # Rich takes a while to load.
    from synth_optimizers.cli.live import LiveView, Panel

    return LiveView(Panel(run, settings, waiting))
