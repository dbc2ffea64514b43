"""What is known of a run from its events, and what shows it to a person: nothing, lines, or a live view."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from synth_optimizers._synth_optimizers import RunFold
from synth_optimizers.cli.output import is_terminal, say
from synth_optimizers.cli.words import counted, moment, span
from synth_optimizers.events import RunEvent

FIRST_WAIT = 10.0
LONGEST_WAIT = 60.0

Weight = Literal["minor", "detail", "plain", "good", "warning", "bad"]
"""How much a line weighs: minor ones are for replays, and a live view leaves out details."""

STAGES = {
    "seed_full_train": "seed on train rows",
    "parent_minibatch_reference": "parent on the minibatch",
    "candidate_minibatch": "screening",
    "candidate_full_train": "full evaluation",
    "heldout": "held-out rows",
}
ENDINGS = frozenset({"gepa.run.finished", "gepa.run.failed", "gepa.run.cancelled"})


class Progress:
    """The state of a run as far as its events tell it; the core does the counting."""

    def __init__(self, run_id: str = "", container_url: str = "") -> None:
        self.run_id = run_id
        self.container_url = container_url
        self.events = 0
        self.latest = 0.0
        self.ending: RunEvent | None = None
        self.fold = RunFold()

    def apply(self, event: RunEvent) -> list[tuple[Weight, str]]:
        """Take note of an event and return the lines that are worth showing, each with how much it weighs."""
        self.run_id = self.run_id or event.run_id
        self.latest = moment(event.ts)
        self.events += 1
        if event.type in ENDINGS:
            self.ending = event
        told = self.fold.apply(event.sequence_number, event.ts, event.type, event.fields, event.message)
        named = f"run {event.run_id}: " if event.type == "gepa.run.started" else ""
        return [(weight, named + text) for weight, text in told if weight != "minor"]

    @property
    def state(self) -> str:
        """The state of the run."""
        return str(self.fold.totals()["state"])

    def elapsed(self, now: float) -> float:
        """Return how long the run has been worked on, in seconds."""
        totals = self.fold.totals()
        if totals["started_at"] is None:
            return 0.0
        over = self.ending is not None or totals["is_interrupted"]
        end = self.latest if over else max(now, self.latest)
        return float(end - (totals["started_at"] + totals["idle_millis"]) / 1000)

    def doing(self, now: float) -> list[str]:
        """Say what the run waits for, and for how long."""
        if self.ending is not None:
            return []
        shown = self.fold.shown()
        if self.fold.totals()["candidates"] == 0:
            return [f"setting up: container {shown['container_url'] or self.container_url}, then the proposer"]
        found = []
        for turn in shown["turns"]:
            what = "repair" if turn["is_repair"] else "proposals"
            took = span(now - turn["since"] / 1000)
            found.append(f"{took} proposer writes {what} for generation {turn['generation']}")
        for evaluation in shown["evaluations"]:
            stage, took = STAGES[evaluation["stage"]], span(now - evaluation["since"] / 1000)
            done = f"{evaluation['done']} of {counted(evaluation['total'], 'rollout')}"
            found.append(f"{took} {stage} of {evaluation['candidate_id']}: {done}")
        return found or [self.state]


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
