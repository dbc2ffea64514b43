"""Measures a cookbook: whether replay gives the same run, and how sure the gain on held-out rows is.

acceptance.py [--cookbook NAME] [--seeds 5] [--short]

For the first seed there are three runs: a fresh one, one under another name that takes every answer from the cache, and
one that may only read the cache while container and reflector are stopped. Their normalized feeds must be equal. The
other seeds have a fresh run each. The gain of the best candidate over the seed candidate is tested over all seeds, and
for each seed over the held-out rows: seeds that agree on an accident would pass the first test.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from shared.launch import run_server
from shared.significance import SeedStatistics, seed_statistics, sign_test
from shared.with_servers import container_of, reflector_of
from synth_optimizers import GepaRun, GepaRunResult, events_compare

COOKBOOKS = Path(__file__).resolve().parent.parent
SIGNIFICANT = 0.05
SHORT = ("gepa.max_generations=2",)


@dataclass(frozen=True)
class Case:
    """A cookbook with a config, and the criteria of its `acceptance.toml`.

    `goal` is the minimum held-out score of the best candidate, as the mean over random seeds. `max_rollouts` limits the
    rollouts of a fresh run. `short` holds the settings of the short form.
    """

    cookbook: str
    config: Path
    goal: float | None = None
    short: tuple[str, ...] = SHORT
    container_options: tuple[str, ...] = ()
    max_rollouts: int | None = None

    @classmethod
    def read(cls, cookbook: str, config: Path | None, options: tuple[str, ...]) -> Case:
        """Load the criteria of a cookbook for a config. A config that `acceptance.toml` does not name has no goal."""
        path = COOKBOOKS / f"{cookbook}_container" / "acceptance.toml"
        asked = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        own = COOKBOOKS / "configs" / f"{cookbook}.toml"
        is_own = config is None or config.resolve() == own
        wanted = asked if config is None or is_own else asked.get("configs", {}).get(config.name, {})
        short = tuple(asked.get("short", SHORT))
        return cls(cookbook, config or own, wanted.get("goal"), short, options, wanted.get("max_rollouts"))


@dataclass(frozen=True)
class SeedReport:
    """The report of one fresh run."""

    seed: int
    seed_score: float
    best_score: float
    gain: float
    low: float | None
    high: float | None
    wins: int
    losses: int
    p_rows: float
    rollouts: int
    seconds: float


@dataclass(frozen=True)
class Report:
    """The report of a cookbook."""

    cookbook: str
    is_replayed: bool
    cached_calls_paid: int
    seeds: list[SeedReport]
    gains: SeedStatistics
    problems: list[str] = field(default_factory=list)

    @property
    def best(self) -> float:
        """The held-out score of the best candidates, as the mean over random seeds."""
        return sum(seed.best_score for seed in self.seeds) / len(self.seeds)


def names() -> list[str]:
    """Return all cookbooks that have a reflector and a config."""
    found = sorted(path.parent.name.removesuffix("_container") for path in COOKBOOKS.glob("*_container/reflect.py"))
    return [name for name in found if (COOKBOOKS / "configs" / f"{name}.toml").exists()]


@contextlib.contextmanager
def servers(case: Case, python: str) -> Iterator[tuple[str, ...]]:
    """Serve a cookbook on free ports, and yield the settings with their addresses."""
    with (
        run_server(python, *container_of(case.cookbook), *case.container_options, "--port", "0") as container,
        run_server(python, *reflector_of(case.cookbook), "--port", "0") as reflector,
    ):
        yield f"container.url={container}", f"proposer.base_url={reflector}"


def measure(case: Case, python: str, seeds: int, *, is_short: bool, place: Path) -> Report:
    """Run a cookbook as often as needed, and return the report."""
    own = case.short if is_short else ()

    def execute(run_id: str, seed: int, addresses: tuple[str, ...], mode: str = "readwrite") -> GepaRunResult:
        where = (
            f"run.output_dir={place}",
            f"cache.path={place / f'cache-{seed}.sqlite'}",
            "cache.namespace=acceptance",
        )
        what = (f"run.run_id={run_id}", f"run.seed={seed}", f"cache.mode={mode}")
        return GepaRun.from_toml(case.config, [*own, *where, *what, *addresses], environ={}).execute()

    first = int(tomllib.loads(case.config.read_text(encoding="utf-8"))["run"].get("seed", 0))
    reports: list[SeedReport] = []
    problems: list[str] = []
    with servers(case, python) as addresses:
        for seed in range(first, first + seeds):
            began = time.monotonic()
            result = execute(f"fresh-{seed}", seed, addresses)
            reports.append(seed_report(seed, result, time.monotonic() - began))
            say(f"  {line(reports[-1])}")
            if seed == first:
                fresh, cached = result, execute(f"cached-{seed}", seed, addresses)
    # The servers are stopped, so only the cache can answer.
    readonly = execute(f"readonly-{first}", first, addresses, "readonly")
    feeds = [result.normalized_event_feed_path for result in (fresh, cached, readonly)]
    is_replayed = events_compare(feeds[0], feeds[1]) and events_compare(feeds[0], feeds[2])
    paid = int(cached.usage["sent_calls"]) + int(readonly.usage["sent_calls"])
    gains = seed_statistics([report.gain for report in reports])
    report = Report(case.cookbook, is_replayed, paid, reports, gains, problems)
    if not is_replayed:
        problems.append("the feeds of the fresh, the cached and the readonly run differ")
    if paid:
        problems.append(f"the cached and the readonly run paid for {paid} calls")
    if not is_short:
        problems.extend(shortcomings(case, report))
    return report


def shortcomings(case: Case, report: Report) -> list[str]:
    """Return the criteria that the report does not meet."""
    found = []
    gains = report.gains
    over_runs = [p for p in (gains.p_permutation, gains.p_t) if p is not None]
    if gains.mean <= 0 or max(over_runs) >= SIGNIFICANT:
        found.append("the gain is not significant over seeds")
    unsure = [str(seed.seed) for seed in report.seeds if not is_significant(seed)]
    if unsure:
        found.append(f"the gain is not significant over held-out rows with seed {', '.join(unsure)}")
    if case.goal is not None and report.best < case.goal:
        found.append(f"the held-out score is {report.best:.4f}, and {case.goal} is to be reached")
    most = max(seed.rollouts for seed in report.seeds)
    if case.max_rollouts is not None and most > case.max_rollouts:
        found.append(f"a run took {most:,} rollouts, and {case.max_rollouts:,} are allowed")
    return found


def is_significant(report: SeedReport) -> bool:
    """Return whether the held-out rows of one run are enough to distinguish its gain from none."""
    return report.low is not None and report.low > 0 and report.p_rows < SIGNIFICANT


def seed_report(seed: int, result: GepaRunResult, seconds: float) -> SeedReport:
    """Return the report of a run's gain on held-out rows."""
    scores = result.scores
    first, best, gain = scores.seed_heldout, scores.best_heldout, scores.heldout_gain
    if first is None or best is None or gain is None:
        raise RuntimeError(f"{result.run_id} measured no held-out rows")
    return SeedReport(
        seed=seed,
        seed_score=first.mean,
        best_score=best.mean,
        gain=gain.difference,
        low=gain.low,
        high=gain.high,
        wins=gain.wins,
        losses=gain.losses,
        p_rows=sign_test(gain.wins, gain.losses),
        rollouts=int(result.usage["rollout_calls"]),
        seconds=round(seconds, 1),
    )


def line(report: SeedReport) -> str:
    """Return the report of a run as one line."""
    change = f"{report.seed_score:.4f} -> {report.best_score:.4f}, gain {report.gain:+.4f}{interval(report)}"
    rows = f"{report.wins} rows better, {report.losses} worse, sign test p = {report.p_rows:.2g}"
    return f"seed {report.seed}: held-out {change}; {rows}; {report.rollouts:,} rollouts in {report.seconds} s"


def interval(found: SeedReport | SeedStatistics) -> str:
    """Format the interval of a gain, if there is one."""
    return "" if found.low is None or found.high is None else f" [{found.low:+.4f}, {found.high:+.4f}]"


def equal_gains(seeds: list[SeedReport]) -> str:
    """Return the significance of identical gains: only the rows can tell, and the least certain run counts."""
    rows = interval(min(seeds, key=lambda seed: float("-inf") if seed.low is None else seed.low))
    return f"all gains are equal, over held-out rows{rows or ' without an interval'}"


def summary(report: Report) -> str:
    """Return the report in a few lines."""
    replay = "equal" if report.is_replayed else "DIFFERENT"
    lines = [f"  replay: the feeds of the fresh, the cached and the readonly run are {replay}"]
    if len(report.seeds) > 1:
        gains = report.gains
        t = equal_gains(report.seeds) if gains.p_t is None else f"paired two-sided t-test p = {gains.p_t:.2g}"
        exact = f"exact one-sided sign-flip permutation test p = {gains.p_permutation:.3f}"
        mean = f"mean gain {gains.mean:+.4f}{interval(gains)}"
        lines.append(f"  over {len(report.seeds)} seeds: {mean}; {t}; {exact}")
    lines.extend(f"  PROBLEM: {problem}" for problem in report.problems)
    return "\n".join(lines)


def say(text: str) -> None:
    """Print a line and flush."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Measure one cookbook or all of them, and return 1 if one does not meet its criteria."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--cookbook", choices=names(), help="only this one")
    parser.add_argument("--config", type=Path, help="another config of the cookbook")
    parser.add_argument("--data", metavar="DIR", help="handed to the container")
    parser.add_argument("--policy", metavar="NAME", help="handed to the container")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds the gain is tested over")
    parser.add_argument("--short", action="store_true", help="one seed and a short search: only the replay is measured")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write all figures as JSON")
    parser.add_argument(
        "--python", default=os.environ.get("SYNTH_COOKBOOK_PYTHON") or sys.executable, help="has what containers need"
    )
    args = parser.parse_args()
    if args.config and not args.cookbook:
        parser.error("--config needs --cookbook")
    reports = []
    for name in [args.cookbook] if args.cookbook else names():
        say(name)
        handed = [("--data", args.data), ("--policy", args.policy)]
        options = tuple(part for option, value in handed if value for part in (option, value))
        case = Case.read(name, args.config, options)
        with tempfile.TemporaryDirectory(prefix=f"{name}-") as place:
            seeds = 1 if args.short else args.seeds
            reports.append(measure(case, args.python, seeds, is_short=args.short, place=Path(place)))
        say(summary(reports[-1]))
    if args.report:
        args.report.write_text(json.dumps([asdict(report) for report in reports], indent=2) + "\n", encoding="utf-8")
    return 1 if any(report.problems for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
