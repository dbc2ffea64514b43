"""Measures this product beside gepa and dspy, and writes a JSON line for every sample.

Every round measures each cell once, so that a slow phase of the machine affects all products. An interrupted session
continues where it was, with the same build.

Usage: python measure.py --programs target/release --environment .venv --peers .venv/speed --results target/bench-speed
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from child import run
from plan import Measurable, plan
from setting import Setting

FULL_REPEATS, QUICK_REPEATS = 5, 1
QUICK_CAP_SECONDS = 5.0


def machine(setting: Setting) -> dict[str, Any]:
    """Return the kind of the machine, and the versions of the peers."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": os.cpu_count(),
        "processor": found[1] if found else platform.machine(),
        "memory_gb": round(memory),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **peer_versions(setting),
    }


def peer_versions(setting: Setting) -> dict[str, str]:
    """Return the versions of the peers in their environment."""
    script = "import importlib.metadata as m, json; print(json.dumps({n: m.version(n) for n in ('gepa', 'dspy')}))"
    return dict(run([str(setting.peers_python), "-c", script], setting.scratch).last_json())


def build_id(setting: Setting) -> str:
    """Return what identifies the measured builds: their programs and extension, and the versions of the peers."""
    found = hashlib.sha256(json.dumps(peer_versions(setting)).encode())
    extensions = sorted(setting.environment.glob("lib/python*/site-packages/synth_optimizers/_synth_optimizers*.so"))
    for path in (*extensions, setting.programs / "scenes", setting.programs / "stub_container"):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def earlier_samples(file: Path, build: str) -> set[str]:
    """Return the samples that a session with the same build has left. Those of another build are put aside."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    if lines and lines[-1]["build"] != build:
        file.replace(file.with_suffix(".previous.jsonl"))
        return set()
    return {line["id"] for line in lines}


def sample_id(key: Mapping[str, Any], number: int) -> str:
    """Return what identifies a sample."""
    return json.dumps([key, number], sort_keys=True)


def measure(setting: Setting, cells: Sequence[Measurable], repeats: int, file: Path) -> None:
    """Measure every cell as often as asked for, unless an earlier session has done it."""
    kind, build = machine(setting), build_id(setting)
    known = earlier_samples(file, build)
    for number in range(repeats):
        for cell in cells:
            identity = sample_id(cell.key(), number)
            if identity in known:
                continue
            began = time.perf_counter()
            figures = cell.measure(setting)
            session = {"date": date.today().isoformat(), "repeat": number, "machine": kind, "build": build}
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps({"id": identity, **cell.key(), **figures, **session}) + "\n")
            shown = " ".join(str(value) for value in cell.key().values())
            sys.stderr.write(f"{time.perf_counter() - began:7.1f} s  {number + 1}/{repeats}  {shown}\n")


def main() -> None:
    """Measure the parts of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=Path, required=True, help="directory of the release programs")
    parser.add_argument("--environment", type=Path, required=True, help="the environment with this product")
    parser.add_argument("--peers", type=Path, required=True, help="the environment with gepa and dspy")
    parser.add_argument("--results", type=Path, required=True, help="directory of the JSON lines")
    parser.add_argument("--repeats", type=int, help=f"how often each cell is measured ({FULL_REPEATS})")
    parser.add_argument("--quick", action="store_true", help="small runs, each cell once")
    parser.add_argument("--parts", default="", help="the parts to measure, separated by commas (all of them)")
    parser.add_argument("--cap", type=float, default=60.0, help="seconds after which a run of a peer is stopped (60)")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    file = options.results / ("quick.jsonl" if options.quick else "speed.jsonl")
    if options.quick and not options.parts:
        file.unlink(missing_ok=True)
    parts = plan(is_quick=options.quick)
    chosen = options.parts.split(",") if options.parts else list(parts)
    # The measured processes end with the session.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(dir=options.results) as scratch:
        setting = Setting(
            options.programs.resolve(),
            options.environment.absolute(),
            options.peers.absolute(),
            Path(scratch).resolve(),
            QUICK_CAP_SECONDS if options.quick else options.cap,
        )
        if missing := setting.missing():
            sys.exit(f"missing: {', '.join(map(str, missing))}; `make bench-speed` builds them")
        repeats = options.repeats or (QUICK_REPEATS if options.quick else FULL_REPEATS)
        measure(setting, [cell for part in chosen for cell in parts[part]], repeats, file)


if __name__ == "__main__":
    main()
