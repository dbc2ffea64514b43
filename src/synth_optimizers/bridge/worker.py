"""A worker process: it reads calls from its standard input and writes outcomes to its standard output.

Both are moved away before the function is loaded: the function reads an empty input, and its prints go to standard
error.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from typing import Any

from .calls import Call, invoke, read_message, write_message
from .errors import BridgeError
from .function import load_function, plan_call
from .rows import SourceRow


def protect_streams() -> tuple[int, int]:
    """Give the function an empty standard input and print to standard error. Returns the real input and output."""
    real_input, real_output = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as empty:  # noqa: PTH123
        os.dup2(empty.fileno(), 0)
    sys.stdout.flush()
    os.dup2(2, 1)
    return real_input, real_output


def main() -> int:
    """Serve calls until the bridge ends."""
    real_input, real_output = protect_streams()
    # Ctrl-C reaches all processes of a terminal; the bridge decides when its workers end.
    signal.signal(signal.SIGINT, lambda *_: None)
    source, sink = os.fdopen(real_input, "rb"), os.fdopen(real_output, "wb")
    start = read_message(source)
    sys.path[:] = [*start["path"], *(entry for entry in sys.path if entry not in start["path"])]
    try:
        function = load_function(start["target"], start["factory"])
        rows = [SourceRow(dict.fromkeys(start["columns"]), "")]
        plan, _ = plan_call(function, start["texts"], rows)
    except BridgeError as error:
        write_message(sink, {"problem": error.message})
        return 2
    write_message(sink, {})
    calls: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(source, calls), daemon=True).start()
    while True:
        message = calls.get()
        outcome = invoke(function, plan, Call(message["texts"], message["row"], message["policy"]))
        sys.stdout.flush()
        failure = list(outcome.failure) if outcome.failure else None
        write_message(sink, {"parts": outcome.parts, "failure": failure})


def _read(source: Any, calls: queue.Queue[dict[str, Any]]) -> None:
    """Queue calls; end the process at once when the bridge has ended, also inside of a call."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            calls.put(read_message(source))
    os._exit(0)
