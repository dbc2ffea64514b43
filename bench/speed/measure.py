"""Measures this product beside gepa and dspy, and writes a JSON line for every sample.

Every round measures each cell once, so that a slow phase of the machine affects all products. An interrupted session
continues where it was.

Usage: python measure.py --programs target/release --environment .venv --peers .venv/speed --results target/bench-speed
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from child import run
from plan import plan
from setting import Setting

FULL_REPEATS, QUICK_REPEATS = 5, 1


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


def sample_id(key: Mapping[str, Any], number: int) -> str:
    """Return what identifies a sample."""
    return json.dumps([key, number], sort_keys=True)


def main() -> None:
    """Measure every cell as often as asked for."""
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
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    known = {line["id"] for line in map(json.loads, lines)}
    parts = plan(is_quick=options.quick)
    chosen = options.parts.split(",") if options.parts else list(parts)
    repeats = options.repeats or (QUICK_REPEATS if options.quick else FULL_REPEATS)
    with tempfile.TemporaryDirectory(dir=options.results) as scratch, file.open("a", encoding="utf-8") as out:
        setting = Setting(
            options.programs.resolve(),
            options.environment.absolute(),
            options.peers.absolute(),
            Path(scratch).resolve(),
            5.0 if options.quick else options.cap,
        )
        if missing := setting.missing():
            sys.exit(f"missing: {', '.join(map(str, missing))}; `make bench-speed` builds them")
        kind = machine(setting)
        for number in range(repeats):
            for cell in (cell for part in chosen for cell in parts[part]):
                identity = sample_id(cell.key(), number)
                if identity in known:
                    continue
                began = time.perf_counter()
                figures = cell.measure(setting)
                session = {"date": date.today().isoformat(), "repeat": number, "machine": kind}
                out.write(json.dumps({"id": identity, **cell.key(), **figures, **session}) + "\n")
                out.flush()
                shown = " ".join(str(value) for value in cell.key().values())
                sys.stderr.write(f"{time.perf_counter() - began:7.1f} s  {number + 1}/{repeats}  {shown}\n")


if __name__ == "__main__":
    main()
