"""What shows a run to a person: the choice of a view, and what happens when nobody looks any more."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from synth_optimizers.cli.output import is_terminal, mute
from synth_optimizers.cli.plain import PlainView, QuietView

if TYPE_CHECKING:
    from synth_optimizers.cli.progress import Line, Progress


class View(Protocol):
    """What shows a run to a person."""

    def start(self) -> None:
        """Begin to draw."""

    def tell(self, line: Line) -> None:
        """Show one line."""

    def notice(self, text: str) -> None:
        """Show a sentence that stays."""

    def tick(self, now: float) -> None:
        """Let time pass."""

    def hang_up(self) -> None:
        """Draw no more: the terminal is gone."""

    def close(self, lines: list[tuple[str, str]]) -> None:
        """Show the summary; nothing comes after it."""


def view_for(run: Progress, settings: Mapping[str, Any], *, quiet: bool, waiting: Callable[[], int | None]) -> View:
    """Choose the view: nothing, a live one on a terminal, lines otherwise."""
    if quiet:
        return QuietView(run)
    if not is_terminal(sys.stderr):
        return PlainView(run)
    from synth_optimizers.cli.live import LiveView, Panel

    return cast("View", Lasting(LiveView(Panel(run, settings, waiting)), QuietView(run)))


class Lasting:
    """A view that draws as long as it can; a terminal that is gone ends the drawing and not the run."""

    def __init__(self, drawing: View, quiet: View) -> None:
        self._view = drawing
        self._quiet = quiet

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a function of the view that gives up drawing when it cannot."""

        def draw(*arguments: object) -> None:
            try:
                getattr(self._view, name)(*arguments)
            except OSError:
                self.hang_up()

        return draw

    def hang_up(self) -> None:
        """Draw no more."""
        drawing, self._view = self._view, self._quiet
        # It gives the terminal back, if there still is one.
        with suppress(OSError):
            drawing.close([])
        mute()
