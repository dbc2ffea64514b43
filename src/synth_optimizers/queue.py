"""The queue of the service without HTTP clients: the service itself, and one claim of a worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import isfinite
from os import PathLike, fspath
from typing import Any

from synth_optimizers import _synth_optimizers as native
from synth_optimizers.extras import codex_runtime

_NOT_SETTINGS = ("db_path", "on_listening")


def gepa_serve(
    db_path: str | PathLike[str],
    bind_addr: str = "127.0.0.1:8879",
    worker_id: str | None = None,
    lease_seconds: float = 3600,
    *,
    workers: int | None = None,
    config_root: str | PathLike[str] | None = None,
    token_file: str | PathLike[str] | None = None,
    allow_hosts: Sequence[str] = (),
    allow_containers: Sequence[str] = (),
    allow_proposers: Sequence[str] = (),
    allow_key_envs: Sequence[str] = (),
    allow_commands: bool | None = None,
    pause_timeout_seconds: float | None = None,
    shutdown_grace_seconds: float | None = None,
    stall_timeout_seconds: float | None = None,
    outage_retry_seconds: float | None = None,
    max_queued: int | None = None,
    busy_timeout_seconds: float | None = None,
    max_connections: int | None = None,
    max_body_mb: int | None = None,
    header_timeout_seconds: float | None = None,
    body_timeout_seconds: float | None = None,
    write_timeout_seconds: float | None = None,
    on_listening: Callable[[str], None] | None = None,
) -> None:
    """Serve the queue over HTTP and execute its runs, until Python is interrupted.

    On the first interrupt (Ctrl-C, or any exception of a signal handler) the service accepts no more run requests,
    saves the active runs and then raises the interrupt again. On the second it does not wait. `config_root` is the
    directory that must contain the `config_path` of a submission; by default the working directory. An address other
    than loopback needs a `token_file`. `allow_commands` says whether a configuration may start commands; by default
    only a service without a token starts them. Other settings have the defaults that `synth-optimizers gepa service
    --help` shows. `on_listening` is called with the URL once the service answers. Log records go to the loggers below
    `synth_optimizers`.
    """
    # Every argument except two is a setting of the core with the same name. A missing one has its default.
    given = {**locals(), "codex_runtime": codex_runtime()}
    settings = {name: value for name, value in given.items() if value is not None and name not in _NOT_SETTINGS}
    # JSON has no word for NaN and infinity: the core refuses them as text.
    numbers = {name: str(value) for name, value in settings.items() if isinstance(value, float) and not isfinite(value)}
    text = json.dumps(settings | numbers, default=fspath)
    native.serve(fspath(db_path), text, on_listening or (lambda _url: None))


def gepa_service_run_next(
    db_path: str | PathLike[str], worker_id: str = "synth-gepa-worker", lease_seconds: float = 3600
) -> dict[str, Any]:
    """Claim the next run request and execute its run.

    Return `request`, `result` and `message`; the first two are `None` if no run request waits.
    """
    return native.gepa_service_run_next(
        fspath(db_path), worker_id=worker_id, lease_seconds=lease_seconds, codex_runtime=codex_runtime()
    )
