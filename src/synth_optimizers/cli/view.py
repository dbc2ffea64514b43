"""The progress of a run, computed from its events, and the views that show it: none, plain lines, or a live panel."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from synth_optimizers._synth_optimizers import EventLog, RunFold
from synth_optimizers.cli.formatting import epoch_seconds, format_duration, pluralize
from synth_optimizers.cli.output import is_terminal, print_message
from synth_optimizers.events import RunEvent

FIRST_REMINDER_SECONDS = 10.0
MAX_REMINDER_SECONDS = 60.0

LineLevel = Literal["minor", "detail", "plain", "good", "warning", "bad"]
"""The level of a line. Only replays show `minor` lines; a live view leaves out `detail` lines."""

STAGES = {
    "seed_full_train": "initial evaluation",
    "parent_minibatch_reference": "parent on the minibatch",
    "candidate_minibatch": "screening",
    "candidate_full_train": "full evaluation",
    "repeat": "repeated rollouts",
    "glance": "glance at other rows",
    "check": "check of the sprint",
    "heldout": "held-out rows",
}


class Line(NamedTuple):
    """A line about an event, and when the event was stored, in seconds since 1970."""

    at: float
    level: LineLevel
    text: str


class FinalEvent(NamedTuple):
    """The event that ended a run."""

    type: str
    fields: dict[str, Any]


class Progress:
    """The state of a run, computed from its events by the core."""

    def __init__(self, run_id: str = "", container_url: str = "") -> None:
        self.run_id = run_id
        self.container_url = container_url
        self.events = 0
        self.fold = RunFold()

    def apply(self, event: RunEvent) -> list[Line]:
        """Apply an event and return the lines to show."""
        self.run_id = self.run_id or event.run_id
        self.events += 1
        at = epoch_seconds(event.ts)
        lines = self.fold.apply(event.sequence_number, event.ts, event.type, event.fields, event.message)
        named = f"run {event.run_id}: " if event.type == "gepa.run.started" else ""
        return [Line(at, level, named + text) for level, text in lines if level != "minor"]

    def read(self, log: EventLog) -> list[Line]:
        """Apply the events that a log has after the last one, and return the lines to show."""
        count, lines = self.fold.read(log)
        self.events += count
        return [Line(unix_millis / 1000, level, text) for unix_millis, level, text in lines]

    @property
    def latest(self) -> float:
        """When the last event was stored, in seconds since 1970."""
        return float((self.fold.totals()["updated_at"] or 0) / 1000)

    @property
    def final_event(self) -> FinalEvent | None:
        """The event that ended the run; `None` before."""
        found = self.fold.end()
        return None if found is None else FinalEvent(found["type"], found["fields"])

    @property
    def state(self) -> str:
        """The state of the run."""
        return str(self.fold.totals()["state"])

    def elapsed(self, now: float) -> float:
        """Return how long the run has been executed, in seconds, without interruptions."""
        totals = self.fold.totals()
        if totals["started_at"] is None:
            return 0.0
        over = self.final_event is not None or totals["is_interrupted"]
        latest = (totals["updated_at"] or 0) / 1000
        end = latest if over else max(now, latest)
        return float(end - (totals["started_at"] + totals["idle_millis"]) / 1000)

    def activities(self, now: float) -> list[str]:
        """Return what the run waits for, and for how long."""
        if self.final_event is not None:
            return []
        shown = self.fold.shown()
        if self.fold.totals()["candidates"] == 0:
            return [f"loading: container {shown['container_url'] or self.container_url}, then the proposer"]
        found = []
        for turn in shown["turns"]:
            what = "repair" if turn["is_repair"] else "proposals"
            took = format_duration(now - turn["since"] / 1000)
            found.append(f"{took} proposer writes {what} for generation {turn['generation']}")
        for evaluation in shown["evaluations"]:
            stage, took = STAGES[evaluation["stage"]], format_duration(now - evaluation["since"] / 1000)
            done = f"{evaluation['done']} of {pluralize(evaluation['total'], 'rollout')}"
            found.append(f"{took} {stage} of {evaluation['candidate_id']}: {done}")
        return found or [self.state]


class View:
    """A view that shows nothing except notices; the base of the other views."""

    def start(self) -> None:
        """Start drawing."""

    def show_line(self, level: LineLevel, text: str) -> None:
        """Show one line."""

    def show_notice(self, text: str) -> None:
        """Show a notice to the person who waits."""
        print_message(text)

    def tick(self, now: float) -> None:
        """Update the parts that depend on the time."""

    def detach(self) -> None:
        """Stop drawing because the terminal is gone. Output to a file or a pipe continues."""

    def close(self, lines: list[tuple[str, str]]) -> None:
        """Show the summary and end the view."""


class PlainView(View):
    """Writes lines to stderr, each with the elapsed time of the run, and a reminder during long waits."""

    def __init__(self, run: Progress, clock: Callable[[], float] = time.time) -> None:
        self.run = run
        self.clock = clock
        self.started = self.quiet_since = clock()
        self.reminder_interval = FIRST_REMINDER_SECONDS

    def show_line(self, level: LineLevel, text: str) -> None:  # noqa: ARG002 (every line is written)
        """Write a line."""
        now = self.clock()
        print_message(f"{format_duration(self.run.elapsed(now)):>8}  {text}")
        self.quiet_since, self.reminder_interval = now, FIRST_REMINDER_SECONDS

    def tick(self, now: float) -> None:
        """If no event arrived for a while, write what the run waits for; the interval between reminders grows."""
        if now - self.quiet_since < self.reminder_interval:
            return
        self.quiet_since, self.reminder_interval = now, min(self.reminder_interval * 3, MAX_REMINDER_SECONDS)
        elapsed = self.run.elapsed(now) or now - self.started
        for activity in self.run.activities(now):
            print_message(f"{format_duration(elapsed):>8}  … {activity}")

    def close(self, lines: list[tuple[str, str]]) -> None:
        """Write the summary."""
        for label, text in lines:
            print_message(f"{label:<12}{text}".rstrip())


def view_for(run: Progress, settings: Mapping[str, Any], *, quiet: bool, waiting: Callable[[], int | None]) -> View:
    """Choose the view: none if quiet, live on a terminal, plain lines otherwise."""
    if quiet:
        return View()
    if not is_terminal(sys.stderr):
        return PlainView(run)
    # Rich is slow to import.
    from synth_optimizers.cli.live import LiveView, Panel

    return LiveView(Panel(run, settings, waiting))
