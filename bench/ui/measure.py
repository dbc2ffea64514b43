"""Measures the page on a large run and on a busy one, and writes the section "The page" of the benchmark page.

Usage: python measure.py --programs target/release --page docs/benchmarks.md [--minutes 2] [--pages 20]

The service, its container and Chromium are processes of their own. The command fails if a limit is violated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

BEGIN = "<!-- The section below is written by `make bench-ui`. -->"
END = "<!-- End of the section that `make bench-ui` writes. -->"

ROLLOUTS, CANDIDATES, ROWS, MINIBATCH = 100_000, 2_000, 40, 10
# Workers and latency of the busy run. They make some 500 events per second; the section has the measured rate.
BUSY_WORKERS, BUSY_LATENCY_MS = 38, 76
OPENINGS = 5
WINDOWS, WINDOW_SECONDS = 3, 15.0

MAX_OPENING_SECONDS = 1.0
MAX_PAGES_CPU = 0.10
MAX_GROWTH = 1.3
MAX_FRAME_MILLIS = 100.0

Json = dict[str, Any]

# Collects the time between two frames. A gap is what a reader feels while scrolling.
WATCH_FRAMES = """() => {
  window.gaps = [];
  let last = performance.now();
  const frame = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
}"""


@contextlib.contextmanager
def process(*command: str, cwd: Path) -> Iterator[tuple[int, str]]:
    """Start a server that prints its port, and yield its process id and its address. It ends with its input."""
    child = subprocess.Popen(command, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
    try:
        port = child.stdout.readline() if child.stdout else ""
        yield child.pid, f"http://127.0.0.1:{int(port)}"
    finally:
        child.kill()
        child.wait()


def config(run_id: str, container: str, workers: int, rollouts: int) -> Json:
    """Return the configuration of a run in which every candidate gets a full evaluation."""
    return {
        "run": {"run_id": run_id, "output_dir": "runs", "seed": 7},
        "container": {"url": container},
        "taskset": {
            "train_ids": [f"train:{row}" for row in range(ROWS)],
            "heldout_ids": [f"test:{row}" for row in range(10)],
        },
        "candidate": {"target_modules": ["instructions"]},
        "policy": {"model": "gpt-4.1-nano"},
        "cache": {"mode": "off"},
        "disk_budget": {"enabled": False},
        "gepa": {
            "search": "reference",
            "max_generations": rollouts,
            "max_total_rollouts": rollouts,
            "minibatch_size": MINIBATCH,
            "minibatch_acceptance_criterion": "improvement_or_equal",
            "skip_perfect_score": False,
            "leakage": {"policy": "allow"},
            "pipeline": {
                "mode": "async_pipelined",
                "max_in_flight_candidates": 8,
                "workers": {"rollout": workers, "propose": 4},
                "adaptive_rollout_concurrency": {"enabled": False},
            },
        },
    }


def submit(service: httpx.Client, sections: Json) -> None:
    """Submit a run that must be accepted."""
    reply = service.post("/runs", json={"config": sections, "allow_unverified": True})
    if reply.status_code != httpx.codes.CREATED:
        sys.exit(reply.text)


def overview(service: httpx.Client, run_id: str) -> Json:
    """Return the state and the figures of a run."""
    found: Json = service.get(f"/runs/{run_id}").json()
    return (found["run"] or {}) | found["request"]


def last_sequence(service: httpx.Client, run_id: str) -> int:
    """Return the number of the newest event of a run."""
    return int(service.get(f"/runs/{run_id}/events", params={"limit": 1}).json()["last_sequence"] or 0)


def opening_seconds(browser: Browser, url: str) -> float:
    """Open a view in a new page and return the time until it is drawn."""
    page = browser.new_page(viewport={"width": 1600, "height": 900})
    try:
        began = time.perf_counter()
        page.goto(url, wait_until="commit")
        page.wait_for_selector("#view:not([aria-busy]) > .view > section:visible")
        page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        taken = time.perf_counter() - began
        if page.locator("#view > .view > .problem").count():
            sys.exit(f"{url}: {page.locator('.problem').inner_text()}")
        return taken
    finally:
        page.close()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_share(pid: int) -> float:
    """Return the share of a core that a process uses during one window."""
    began, before = time.perf_counter(), cpu_seconds(pid)
    time.sleep(WINDOW_SECONDS)
    return (cpu_seconds(pid) - before) / (time.perf_counter() - began)


def heap_megabytes(session: CDPSession) -> float:
    """Return the memory of a page's objects after a collection of garbage."""
    session.send("HeapProfiler.collectGarbage")
    metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["JSHeapUsedSize"]) / 1e6


def pages_cpu(browser: Browser, pid: int, url: str, count: int) -> tuple[list[float], list[float]]:
    """Return the CPU share of the service without pages and with pages, in alternating windows."""
    without, with_pages = [], []
    for _ in range(WINDOWS):
        without.append(cpu_share(pid))
        context = browser.new_context(viewport={"width": 1600, "height": 900})
        for _ in range(count):
            context.new_page().goto(url, wait_until="commit")
        for page in context.pages:
            page.wait_for_selector("#view > .view > section")
        with_pages.append(cpu_share(pid))
        context.close()
    return without, with_pages


def streaming(page: Page, url: str, minutes: float) -> tuple[list[float], list[float]]:
    """Watch a busy run, and return the heap at even times and the gaps between frames."""
    page.goto(url)
    page.wait_for_selector("#events .feed li")
    page.get_by_label("show").select_option("all")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    end = time.monotonic() + minutes * 60
    # The page needs a moment until its lists are full.
    page.wait_for_timeout(minutes * 6_000)
    heap, gaps = [heap_megabytes(session)], []
    while time.monotonic() < end:
        page.evaluate(WATCH_FRAMES)
        page.wait_for_timeout(minutes * 6_000)
        gaps += page.evaluate("() => { const found = window.gaps.slice(1); window.gaps = []; return found; }")
        heap.append(heap_megabytes(session))
    return heap, gaps


def measure(options: argparse.Namespace, place: Path) -> Json:
    """Run the large and the busy run, and return all figures."""
    stub, program = str(options.programs / "stub_container"), str(options.programs / "scripted_service")
    rows = ["--train", str(ROWS), "--heldout", "10"]
    serve = [program, "--db", "service.sqlite", "--config-root", ".", "--variations", "yes"]
    figures: Json = {"openings": {}}
    with (
        process(stub, *rows, cwd=place) as (_, fast),
        process(*serve, cwd=place) as (_, url),
        httpx.Client(base_url=url, timeout=60, trust_env=False) as service,
    ):
        submit(service, config("large", fast, 64, ROLLOUTS))
        while not (found := overview(service, "large"))["is_terminal"]:
            time.sleep(2)
        if found["status"] != "completed":
            sys.exit(json.dumps(found))
        figures["rollouts"], figures["candidates"] = found["rollouts_finished"], found["candidates"]
    with (
        process(stub, *rows, "--latency-ms", str(BUSY_LATENCY_MS), cwd=place) as (_, slow),
        process(*serve, cwd=place) as (pid, url),
        httpx.Client(base_url=url, timeout=60, trust_env=False) as service,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), chromium_sandbox=os.getuid() != 0
        )
        best = overview(service, "large")["best_candidate_id"]
        views = {
            "Run": "", "Lineage": "/lineage", "Rows": "/rows", "Rows, all candidates": "/rows?candidates=all",
            "Candidate": f"/candidates/{best}?against=initial", "Rollout": "/rollouts/50000",
        }  # fmt: skip
        opening_seconds(browser, f"{url}/ui/health")
        for name, path in views.items():
            address = f"{url}/ui/runs/large{path}"
            figures["openings"][name] = [opening_seconds(browser, address) for _ in range(OPENINGS)]
        figures["openings"]["Runs"] = [opening_seconds(browser, f"{url}/ui/") for _ in range(OPENINGS)]

        submit(service, config("busy", slow, BUSY_WORKERS, 10_000_000))
        while last_sequence(service, "busy") < 5_000:
            time.sleep(0.5)
        watched = f"{url}/ui/runs/busy"
        began, first = time.perf_counter(), last_sequence(service, "busy")
        figures["without"], figures["with"] = pages_cpu(browser, pid, watched, options.pages)
        figures["heap"], figures["gaps"] = streaming(browser.new_page(), watched, options.minutes)
        seconds = time.perf_counter() - began
        figures["rate"] = (last_sequence(service, "busy") - first) / seconds
        browser.close()
    return figures


def violations(figures: Json, pages: int) -> list[str]:
    """Return the limits that the figures violate."""
    found = [
        f"{name} opened in {statistics.median(times):.2f} s, the limit is {MAX_OPENING_SECONDS} s"
        for name, times in figures["openings"].items()
        if statistics.median(times) > MAX_OPENING_SECONDS
    ]
    share = statistics.median(figures["with"]) - statistics.median(figures["without"])
    if share > MAX_PAGES_CPU:
        found.append(f"{pages} pages cost {share:.1%} of a core, the limit is {MAX_PAGES_CPU:.0%}")
    if figures["heap"][-1] > MAX_GROWTH * figures["heap"][0]:
        found.append(f"the heap of the page grew from {figures['heap'][0]:.1f} to {figures['heap'][-1]:.1f} MB")
    slow = percentile(figures["gaps"], 0.99)
    if slow > MAX_FRAME_MILLIS:
        found.append(f"one of 100 frames took {slow:.0f} ms, the limit is {MAX_FRAME_MILLIS:.0f} ms")
    return found


def percentile(values: list[float], share: float) -> float:
    """Return a percentile."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def spread(values: list[float], write: Callable[[float], str]) -> str:
    """Write the median and the range of values."""
    return f"{write(statistics.median(values))} ({write(min(values))} to {write(max(values))})"


def section(figures: Json, options: argparse.Namespace) -> str:
    """Return the section of the benchmark page."""
    seconds: Callable[[float], str] = "{:.2f} s".format
    share: Callable[[float], str] = "{:.1%}".format
    lines = "\n".join(f"| {name} | {spread(times, seconds)} |" for name, times in figures["openings"].items())
    heap, gaps = figures["heap"], figures["gaps"]
    cost = statistics.median(figures["with"]) - statistics.median(figures["without"])
    return f"""
## The page

Written on {date.today().isoformat()} by `make bench-ui` on {os.cpu_count()} cores ({platform.machine()}), with the
release build and Debian's Chromium. The service, its container and the browser share these cores.

A run with {figures["rollouts"]:,} rollouts and {figures["candidates"]:,} candidates, from the click to the drawn view,
{OPENINGS} times each, median and range:

| view | time |
| --- | --- |
{lines}

A run that writes {figures["rate"]:.0f} events per second, for {options.minutes:g} minutes:

| what | figure |
| --- | --- |
| CPU of the service without a page, of one core | {spread(figures["without"], share)} |
| CPU of the service with {options.pages} pages open on the run | {spread(figures["with"], share)} |
| cost of {options.pages} pages | {cost:.1%} |
| memory of the page's objects, at the start and at the end | {heap[0]:.1f} MB, {heap[-1]:.1f} MB |
| time between two frames: median, 99 of 100 | {statistics.median(gaps):.0f} ms, {percentile(gaps, 0.99):.0f} ms |

The windows without and with pages alternate in one run, {WINDOWS} of {WINDOW_SECONDS:g} s each.

"""


def main() -> None:
    """Measure, write the section and check the limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=Path, required=True, help="directory of the release programs")
    parser.add_argument("--page", type=Path, required=True, help="the benchmark page")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long the busy run is watched")
    parser.add_argument("--pages", type=int, default=20, help="how many pages are open at once")
    options = parser.parse_args()
    options.programs = options.programs.resolve()
    page = options.page.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{options.page}: the marks of the section are missing: {BEGIN} and {END}")
    with tempfile.TemporaryDirectory() as place:
        figures = measure(options, Path(place))
    options.page.write_text(f"{before}{begin}\n{section(figures, options)}{end}{after}", encoding="utf-8")
    found = violations(figures, options.pages)
    if found:
        sys.exit("; ".join(found))


if __name__ == "__main__":
    main()
