"""The live view of a run on a terminal; no line of it is wider than the terminal."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.text import Text

from synth_optimizers.cli.output import mute, say_above
from synth_optimizers.cli.view import Progress, View, Weight
from synth_optimizers.cli.words import counted, money, score, span, tokens

LABEL = 13
WIDEST_BAR = 60
STYLES = {"good": "green", "warning": "yellow", "bad": "bold red", "plain": "", "detail": "dim"}


class Panel:
    """Draws the state of a run as it is at the moment of drawing."""

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
        self.begun = clock()
        self.notice = ""

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw line by line; each is cut to the width."""
        now = self.clock()
        width = options.max_width
        lines = [self._head(now, width)]
        lines += [_bar(*limit, width, options.ascii_only) for limit in limits_in_force(self.settings, self.run, now)]
        lines += [_row(label, text) for label, text in self._facts(now)]
        if self.notice:
            lines.append(Text(self.notice, style="bold yellow"))
        for line in lines:
            line.no_wrap = True
            line.truncate(width, overflow="ellipsis")
        yield Group(*lines)

    def _head(self, now: float, width: int) -> Text:
        run, generation = self.run, self.run.fold.totals()["generation"]
        where = "" if generation is None or run.ending else f"  generation {generation}"
        left = f"{run.run_id or 'run'}  {run.state}{where}"
        right = span(run.elapsed(now) or now - self.begun)
        room = max(1, width - len(right) - 1)
        return Text.assemble((left[:room].ljust(room), "bold"), " ", (right, "cyan"))

    def _facts(self, now: float) -> list[tuple[str, str]]:
        totals, shown = self.run.fold.totals(), self.run.fold.shown()
        facts = []
        if totals["best"] is not None:
            facts.append(("best", f"{score(shown['best_score'])}  {totals['best']['candidate_id']}"))
        if shown["seed_score"] is not None:
            facts.append(("seed", score(shown["seed_score"])))
        judged = f"{totals['accepted']} accepted, {totals['rejected']} rejected"
        facts.append(("candidates", f"{totals['candidates']} ({judged}), frontier of {totals['frontier_size']}"))
        facts.append(("in flight", self._in_flight(totals, len(shown["turns"]))))
        usage = totals["usage"]
        calls = f"{usage['paid_calls']:,} paid, {usage['cached_calls']:,} cached"
        cost = money(usage["cost_usd"])
        facts.append(("usage", f"{tokens(usage['total_tokens'])} tokens, cost {cost}, calls {calls}"))
        if shown["last_decision"]:
            facts.append(("last", shown["last_decision"]))
        for place, doing in enumerate(self._doing(now)):
            facts.append(("now" if place == 0 else "", doing))
        return facts

    def _in_flight(self, totals: Mapping[str, Any], turns: int) -> str:
        outstanding = 0 if self.run.ending else totals["rollouts_outstanding"]
        text = f"{counted(outstanding, 'rollout')} asked for"
        waiting = self.waiting()
        if waiting:
            text += f", {waiting:,} of them answered and waiting for their turn"
        if turns:
            text += f", {counted(turns, 'proposer turn')}"
        if totals["rollouts_failed"]:
            text += f"; {totals['rollouts_failed']:,} failed so far"
        return text

    def _doing(self, now: float) -> list[str]:
        most = 4
        doing = self.run.doing(now)
        if self.run.fold.totals()["candidates"] == 0 and doing:
            doing = [f"{span(now - self.begun)} {doing[0]}"]
        return doing if len(doing) <= most else [*doing[: most - 1], f"and {len(doing) - most + 1} more"]


class LiveView(View):
    """Keeps a panel at the bottom of the terminal and lets lines scroll by above it.

    A terminal that is gone ends the drawing and not the run.
    """

    def __init__(self, panel: Panel) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=False)
        self.panel = panel
        self.live = Live(panel, console=self.console, refresh_per_second=8, transient=True, redirect_stdout=False)
        self.is_drawing = True

    def start(self) -> None:
        """Begin to draw."""
        self._draw(self.live.start)
        if self.is_drawing:
            say_above(lambda text: self.console.print(Text(text), soft_wrap=True))

    def tell(self, weight: Weight, text: str) -> None:
        """Let a line scroll by, unless it is a detail that the panel shows."""
        if weight != "detail":
            self._draw(lambda: self.console.print(Text(text, style=STYLES[weight])))

    def notice(self, text: str) -> None:
        """Show a sentence in the panel until the end."""
        self.panel.notice = text

    def hang_up(self) -> None:
        """Draw no more."""
        self.is_drawing = False
        # It gives the terminal back, if there still is one.
        with suppress(OSError):
            self._stop()
        mute()

    def close(self, lines: list[tuple[str, str]]) -> None:
        """Remove the panel and leave the summary behind."""
        self._draw(lambda: self._leave(lines))

    def _draw(self, draw: Callable[[], None]) -> None:
        if self.is_drawing:
            try:
                draw()
            except OSError:
                self.hang_up()

    def _leave(self, lines: list[tuple[str, str]]) -> None:
        self._stop()
        if lines:
            self.console.print()
        for label, text in lines:
            # A path or command is not broken, so that it can be copied.
            self.console.print(_row(label, text, label_width=12), soft_wrap=label in ("artifacts", "next"))

    def _stop(self) -> None:
        say_above(None)
        self.live.stop()


def _row(label: str, text: str, label_width: int = LABEL) -> Text:
    return Text.assemble((label.ljust(label_width), "dim"), text)


def _bar(name: str, used: float, words: str, width: int, ascii_only: bool) -> Text:
    room = max(4, min(WIDEST_BAR, width - LABEL - max(len(words), 16) - 3))
    filled = int(min(1.0, used) * room)
    full, empty = ("#", "-") if ascii_only else ("━", "─")
    style = "yellow" if used >= 0.9 else "cyan"
    return Text.assemble(
        (name.ljust(LABEL), "dim"), (full * filled, style), (empty * (room - filled), "dim"), " ", words
    )


def limits_in_force(settings: Mapping[str, Any], run: Progress, now: float) -> list[tuple[str, float, str]]:
    """Return the limits among the settings of `[gepa]` that are set, in the order in which people think of them.

    Each has its name, the share of it that is used, and both in words.
    """
    totals = run.fold.totals()
    train, heldout, limited = totals["train_rollouts"], totals["heldout_rollouts"], totals["limited"]
    limits: tuple[tuple[str, str, float, Callable[[float], str]], ...] = (
        ("max_generations", "generations", totals["generations"], tokens),
        ("max_total_rollouts", "rollouts", train + heldout, tokens),
        ("max_train_rollouts", "  train", train, tokens),
        ("max_heldout_rollouts", "  held-out", heldout, tokens),
        ("max_cost_usd", "cost", limited["known_cost_nano_usd"] / 1e9, money),
        ("max_total_tokens", "tokens", limited["total_tokens"], tokens),
        ("max_prompt_tokens", "  prompt", limited["prompt_tokens"], tokens),
        ("max_completion_tokens", "  completion", limited["completion_tokens"], tokens),
        ("max_time_seconds", "time", _seconds(run, totals, now), span),
    )
    set_limits = ((name, used, settings.get(key), write) for key, name, used, write in limits)
    return [(name, used / most, f"{write(used)} of {write(most)}") for name, used, most, write in set_limits if most]


def _seconds(run: Progress, totals: Mapping[str, Any], now: float) -> float:
    """Return how much of the time limit is used."""
    if totals["clock"] is None or run.ending is not None:
        return run.elapsed(now)
    millis, at = totals["clock"]
    return float(millis / 1000 + max(0.0, now - at / 1000))
