"""The limits that the figures of this product must hold, each with what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from overhead import LARGE, SERIAL, SMALL
from samples import Samples

MICROS = "{:.0f} us"


@dataclass(frozen=True)
class Bar:
    """A limit and a figure."""

    text: str
    measured: str
    holds: bool


def at_most(text: str, value: float | None, limit: float, form: str) -> Iterator[Bar]:
    """Compare a figure with its upper limit, if it was measured."""
    if value is not None:
        yield Bar(f"{text}: at most {form.format(limit)}", form.format(value), value <= limit)


def at_least(text: str, value: float | None, limit: float, form: str) -> Iterator[Bar]:
    """Compare a figure with its lower limit, if it was measured."""
    if value is not None:
        yield Bar(f"{text}: at least {form.format(limit)}", form.format(value), value >= limit)


class Own:
    """Medians of this product at one run length."""

    def __init__(self, samples: Samples, rollouts: int) -> None:
        self.samples = samples
        self.rollouts = rollouts

    def median(self, name: str, **key: object) -> float | None:
        """Return a median of the reference search with 8 workers and without a cache, but for what the key says."""
        usual: dict[str, object] = {"form": "quiet", "workers": 8, "cache": "off", "reply_bytes": SMALL}
        usual |= {
            "part": "overhead",
            "product": "ours",
            "search": "reference",
            "schedule": "auto",
            "rollouts": self.rollouts,
        }
        found = self.samples.figure(name, **(usual | key))
        return found.median if found else None

    def ratio(self, name: str, of: dict[str, object], to: dict[str, object]) -> float | None:
        """Return the ratio of two medians."""
        above, below = self.median(name, **of), self.median(name, **to)
        return above / below if above and below else None


def overhead_bars(samples: Samples, rollouts: int) -> Iterator[Bar]:
    """Check processor time and bytes."""
    own = Own(samples, rollouts)
    for form, words in (("plain", "on a terminal"), ("json", "with --json"), ("quiet", "with --quiet")):
        value = own.median("cpu_micros", form=form)
        yield from at_most(f"processor time of a rollout, `gepa run` {words}, 8 workers", value, 100, MICROS)
    many: dict[str, object] = {"workers": 64}
    serial = many | {"schedule": SERIAL}
    yield from at_most("the same with 64 workers", own.median("cpu_micros", **many), 80, MICROS)
    text = "the same with 64 workers and one generation at a time"
    yield from at_most(text, own.median("cpu_micros", **serial), 80, MICROS)
    for key, words in (({}, "8 workers"), (serial, "64 workers and one generation at a time")):
        more = own.ratio("cpu_micros", key | {"cache": "readwrite"}, key)
        yield from at_most(f"with the cache to without it, {words}", more, 1.15, "{:.2f}x")
    yield from at_most("with replies of 64 KB", own.median("cpu_micros", reply_bytes=LARGE), 300, MICROS)
    written, kept = own.median("written"), own.median("kept")
    if written and kept:
        yield from at_most("bytes written to bytes kept", written / kept, 2, "{:.2f}x")
        yield from at_most("bytes kept of a reply of 1.7 KB", kept, 2_700, "{:,.0f}")
    for name, words in (("cpu_micros", "processor time"), ("written", "bytes written")):
        yield from at_most(f"{words}, 1 worker to 8 workers", own.ratio(name, {"workers": 1}, {}), 2, "{:.2f}x")


def time_bars(samples: Samples) -> Iterator[Bar]:
    """Check start-up, replay and resuming."""

    def median(name: str, **key: object) -> float | None:
        found = samples.figure(name, **key)
        return found.median if found else None

    version = median("wall_ms", part="startup", what="synth-optimizers --version")
    first = median("wall_ms", part="startup", what="first rollout", product="ours")
    yield from at_most("`synth-optimizers --version`", version, 50, "{:.0f} ms")
    if first is not None and version is not None:
        text = "first rollout of `gepa run` against a container that answers, without the time of `--version`"
        yield from at_most(text, first - version, 80, "{:.0f} ms")
    for rollouts, limit in ((10_000, 0.7), (100_000, 6.0)):
        value = median("wall_seconds", part="replay", rollouts=rollouts)
        yield from at_most(f"readonly replay of {rollouts:,} rollouts", value, limit, "{:.2f} s")
    value = median("seconds", part="resume", product="ours", rollouts=100_000)
    yield from at_most("resume of a run of 100,000 rollouts", value, 2, "{:.2f} s")


def busy_bars(samples: Samples) -> Iterator[Bar]:
    """Check the share of busy workers."""
    limits = {"CL": 0.90, "P2": 0.90, "D": 0.85, "E20L": 0.80, "L1": 0.80}
    for scene, limit in limits.items():
        for search in ("reference", "sprint"):
            found = samples.figure("busy", part="busy", product="ours", scene=scene, search=search)
            value = found.median if found else None
            yield from at_least(f"workers busy, {scene}, {search}", value, limit, "{:.3f}")
