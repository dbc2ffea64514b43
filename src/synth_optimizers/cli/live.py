"""The live view of a run on a terminal. No line is wider than the terminal."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.text import Text

from synth_optimizers.cli.formatting import (
    format_concurrency,
    format_cost,
    format_count,
    format_duration,
    format_score,
    format_waiting,
    pluralize,
)
from synth_optimizers.cli.output import discard_messages, print_through
from synth_optimizers.cli.view import LineLevel, Progress, View
from synth_optimizers.visible_text import visible_text

LABEL_WIDTH = 13
MAX_BAR_WIDTH = 60
STYLES = {"good": "green", "warning": "yellow", "bad": "bold red", "plain": "", "detail": "dim"}


class Panel:
    """Draws the current state of a run."""

    def __init__(
        self,
        run: Progress,
        settings: Mapping[str, Any],
        waiting: Callable[[], int | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run = run
        self.settings = settings
        self.waiting = waiting
        self.clock = clock
        self.started = clock()
        self.notice = ""

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the panel line by line, each cut to the width of the terminal."""
        now = self.clock()
        width = options.max_width
        lines = [self._title(now, width)]
        lines += [_bar(*limit, width, options.ascii_only) for limit in active_limits(self.settings, self.run, now)]
        lines += [_row(label, text) for label, text in self._fact_lines(now)]
        if self.notice:
            lines.append(Text(self.notice, style="bold yellow"))
        for line in lines:
            line.no_wrap = True
            line.truncate(width, overflow="ellipsis")
        yield Group(*lines)

    def _title(self, now: float, width: int) -> Text:
        run, generation = self.run, self.run.fold.totals()["generation"]
        where = "" if generation is None or run.final_event else f"  generation {generation}"
        left = f"{run.run_id or 'run'}  {run.state}{where}"
        right = format_duration(run.elapsed(now) or now - self.started)
        room = max(1, width - len(right) - 1)
        return Text.assemble((left[:room].ljust(room), "bold"), " ", (right, "cyan"))

    def _fact_lines(self, now: float) -> list[tuple[str, str]]:
        totals, shown = self.run.fold.totals(), self.run.fold.shown()
        facts = []
        if totals["best"] is not None:
            facts.append(("best", f"{format_score(shown['best_train_score'])}  {totals['best']['candidate_id']}"))
        if shown["seed_train_score"] is not None:
            facts.append(("seed", format_score(shown["seed_train_score"])))
        judged = f"{totals['accepted']} accepted, {totals['rejected']} rejected"
        facts.append(("candidates", f"{totals['candidates']} ({judged}), frontier of {totals['frontier_size']}"))
        facts.append(("in flight", self._in_flight(totals, len(shown["turns"]))))
        facts.extend(("waiting", format_waiting(waiting)) for waiting in totals.get("waiting", ()))
        usage = totals["usage"]
        calls = f"{usage['sent_calls']:,} sent, {usage['cached_calls']:,} cached"
        cost = format_cost(usage["cost_usd"])
        facts.append(("usage", f"{format_count(usage['total_tokens'])} tokens, cost {cost}, calls {calls}"))
        if shown["last_decision"]:
            facts.append(("last", shown["last_decision"]))
        for place, activity in enumerate(self._activities(now)):
            facts.append(("now" if place == 0 else "", activity))
        return facts

    def _in_flight(self, totals: Mapping[str, Any], turns: int) -> str:
        outstanding = 0 if self.run.final_event else totals["rollouts_outstanding"]
        text = f"{pluralize(outstanding, 'rollout')} outstanding"
        waiting = self.waiting()
        if waiting:
            text += f", {waiting:,} of them answered and in the inbox"
        if totals.get("concurrency"):
            text += f", {format_concurrency(totals['concurrency'])}"
        if turns:
            text += f", {pluralize(turns, 'proposer turn')}"
        if totals["rollouts_failed"]:
            text += f"; {totals['rollouts_failed']:,} failed so far"
        return text

    def _activities(self, now: float) -> list[str]:
        most = 4
        activities = self.run.activities(now)
        if self.run.fold.totals()["candidates"] == 0 and activities:
            activities = [f"{format_duration(now - self.started)} {activities[0]}"]
        return (
            activities
            if len(activities) <= most
            else [*activities[: most - 1], f"and {len(activities) - most + 1} more"]
        )


class LiveView(View):
    """Keeps a panel at the bottom of the terminal and prints lines above it.

    When the terminal disappears, drawing stops and the run continues.
    """

    def __init__(self, panel: Panel) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=False)
        self.panel = panel
        self.live = Live(panel, console=self.console, refresh_per_second=8, transient=True, redirect_stdout=False)
        self.is_drawing = True

    def start(self) -> None:
        """Start drawing: one panel before the thread that refreshes it starts, or rich could draw two."""
        self._draw(lambda: self.live.start(refresh=True))
        if self.is_drawing:
            print_through(lambda text: self.console.print(Text(text), soft_wrap=True))

    def show_line(self, level: LineLevel, text: str) -> None:
        """Print a line above the panel. Lines of level `detail` are skipped, because the panel shows them."""
        if level != "detail":
            self._draw(lambda: self.console.print(Text(visible_text(text), style=STYLES[level])))

    def show_notice(self, text: str) -> None:
        """Show a notice in the panel until the run ends."""
        self.panel.notice = text

    def detach(self) -> None:
        """Stop drawing."""
        self.is_drawing = False
        # Stopping the panel restores the terminal, if it still exists.
        with suppress(OSError):
            self._stop()
        discard_messages()

    def close(self, lines: list[tuple[str, str]]) -> None:
        """Remove the panel and print the summary."""
        self._draw(lambda: self._print_summary(lines))

    def _draw(self, draw: Callable[[], None]) -> None:
        if self.is_drawing:
            try:
                draw()
            except OSError:
                self.detach()

    def _print_summary(self, lines: list[tuple[str, str]]) -> None:
        self._stop()
        if lines:
            self.console.print()
        for label, text in lines:
            # Paths and commands are not wrapped, so that they can be copied.
            self.console.print(_row(label, text, label_width=12), soft_wrap=label in ("artifacts", "next"))

    def _stop(self) -> None:
        print_through(None)
        self.live.stop()


def _row(label: str, text: str, label_width: int = LABEL_WIDTH) -> Text:
    return Text.assemble((label.ljust(label_width), "dim"), visible_text(text))


def _bar(name: str, used: float, words: str, width: int, ascii_only: bool) -> Text:
    room = max(4, min(MAX_BAR_WIDTH, width - LABEL_WIDTH - max(len(words), 16) - 3))
    filled = int(min(1.0, used) * room)
    full, empty = ("#", "-") if ascii_only else ("━", "─")
    style = "yellow" if used >= 0.9 else "cyan"
    return Text.assemble(
        (name.ljust(LABEL_WIDTH), "dim"), (full * filled, style), (empty * (room - filled), "dim"), " ", words
    )


def active_limits(settings: Mapping[str, Any], run: Progress, now: float) -> list[tuple[str, float, str]]:
    """Return the limits of `[gepa]` that are set, most familiar first.

    Each has its name, the fraction that is used, and both as text.
    """
    totals = run.fold.totals()
    train, heldout, limited = totals["train_rollouts"], totals["heldout_rollouts"], totals["limited"]
    limits: tuple[tuple[str, str, float, Callable[[float], str]], ...] = (
        ("max_generations", "generations", totals["generations"], format_count),
        ("max_total_rollouts", "rollouts", train + heldout, format_count),
        ("max_train_rollouts", "  train", train, format_count),
        ("max_heldout_rollouts", "  held-out", heldout, format_count),
        ("max_cost_usd", "cost", limited["known_cost_nano_usd"] / 1e9, format_cost),
        ("max_total_tokens", "tokens", limited["total_tokens"], format_count),
        ("max_prompt_tokens", "  prompt", limited["prompt_tokens"], format_count),
        ("max_completion_tokens", "  completion", limited["completion_tokens"], format_count),
        ("max_time_seconds", "time", _used_seconds(run, totals, now), format_duration),
    )
    set_limits = ((name, used, settings.get(key), write) for key, name, used, write in limits)
    return [(name, used / most, f"{write(used)} of {write(most)}") for name, used, most, write in set_limits if most]


def _used_seconds(run: Progress, totals: Mapping[str, Any], now: float) -> float:
    """Return how many seconds of the time limit are used."""
    if totals["clock"] is None or run.final_event is not None:
        return run.elapsed(now)
    millis, at = totals["clock"]
    return float(millis / 1000 + max(0.0, now - at / 1000))
