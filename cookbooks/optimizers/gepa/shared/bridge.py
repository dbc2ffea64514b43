"""Serves a function of a cookbook with the bridge of this repository, in an environment that has nothing of it."""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from shared.serving import exit_when_stdin_closes, print_ready

ARCHIVE = Path(__file__).resolve().parents[4] / "src" / "synth_optimizers" / "bridge" / "archive.py"


def serve_function(
    function: Callable[..., Any],
    rows: Iterable[Mapping[str, Any]],
    texts: Mapping[str, str],
    args: argparse.Namespace,
    **task: Any,  # noqa: ANN401 (options of the bridge)
) -> None:
    """Serve a function and its rows on loopback until the process ends, and print the address."""
    sys.path.append(str(runpy.run_path(str(ARCHIVE))["archive"]()))
    bridge = importlib.import_module("synth_optimizers_bridge")
    try:
        url = bridge.serve(function, rows, texts, port=args.port, **task).open()
    except bridge.BridgeError as error:
        raise SystemExit(str(error)) from error
    if args.watch_stdin:
        exit_when_stdin_closes()
    print_ready(task["name"], url)
    threading.Event().wait()
