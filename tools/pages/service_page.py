"""`docs/reference/http.md`: the standing service, its routes and its refusals; and `docs/reference/openapi.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pages.markdown import code, generated_from, page, table

INTRO = """\
# The service

A standing service keeps a queue of runs in one SQLite file, carries them out, and answers over HTTP while they go on
and after:

```sh
synth-optimizers gepa service --db service.sqlite --bind 127.0.0.1:8879 --worker-id local-gepa
```

`--help` lists every setting with its default. SIGTERM, Ctrl-C or the end of the terminal drain it: it takes no more
requests, lets runs finish what is under way within `--shutdown-grace-seconds`, saves them and ends with exit code 0.
The same command goes on. A service that is killed loses nothing either: the next start takes back what it held,
before it is ready. One service at a time has a database; a second one is told who has it. Any number of other
processes may work on the same queue with the functions of Python (`workspace_submit_run_request`,
`gepa_service_run_next` and so on)."""

SUBMIT = """\
## Submitting

`POST /runs` takes `config_path`, a file beneath `--config-root` (by default the directory in which the service was
started), or `config`, the same configuration as TOML text or as an object. Relative paths in an inline configuration
start at the config root. The environment of the service changes no configuration. `overrides` are texts like
`gepa.max_generations=3`. Before anything is stored, everything is checked that `gepa check` checks, and `POST
/runs/preflight` does only that: every blocker has a stage, code, field, message, hint and whether trying again may
help. `allow_unverified` leaves out what would contact the container and the proposer.

When `201` comes back, the request is on the disk. With an `Idempotency-Key`, the same body gives the same run again
(`200`, `replayed`), and another body is refused with `409`. The highest `priority` runs first, then the oldest. Two
requests that name the same container or the same cache namespace never run at once; one that has to wait does not
hold up others. `auto_start: false` leaves it to `POST /worker/run-next`; `manual_step: true` lets it go on only with
`POST /runs/{run_id}/step`. A run that failed or was cancelled may be submitted again under its id: where it had not
come to its own end it goes on, and otherwise it ends the same way again (`run_is_over` among the `warnings`).
`DELETE /runs/{run_id}` removes a run that is over, with its directory if a request of it has worked there; what is
not there is no error.

A secret in a configuration is refused: name the variable that holds it, and set it where the service runs."""

STEERING = """\
## Steering

`cancel`, `pause`, `resume` and `stop` answer with `accepted` (202) or `noop` (200) once the request is stored; where it
is impossible, `409` carries the current `state`. They do not wait for the rest of a batch of rollouts or of a proposer
turn. `cancel` ends a run for good. `pause` sets it aside, and unless it is resumed
within `timeout_seconds` (by default `--pause-timeout-seconds`), it is cancelled. `stop` takes back what was not sent,
waits for rollouts that were, and ends the run with its held-out evaluation.

A request that does not move says why in `waiting`: the reason, since when, and by when it goes on by itself at the
latest, where that is known (the end of a lease or of a pause). Workers look at what waits for one of them at least
twice a second. A run that tells nothing for `--silence-seconds`, on top of the longest timeout of its own
configuration, has failed."""

WATCHING = """\
## Watching

`GET /runs/{run_id}/events` is a page of events, or with `Accept: text/event-stream` a stream that ends with the run.
The number of an event is its id: whoever comes back with `Last-Event-ID` misses nothing and sees nothing twice. A
reader that does not read is dropped; the run does not notice. `GET /runs/{run_id}/best` has an `ETag`, and with
`?wait_newer_than=SEQUENCE` it answers as soon as there is a newer best candidate, or with an empty `304`. `GET
/metrics` is for Prometheus; counts of rollouts, tokens, cost and cache hits are those since the service started."""

LEASES = """\
## Leases

Whoever works on a request holds a lease with a fencing token. A lease is renewed while its holder lives, and it ends
when the holder is proved to be gone (its process has ended, another service has the database, the machine was started
again) or when it has run out by the clock of the machine's uptime; the clock on the wall decides nothing. From then
on every write of the old holder is refused, in the queue and in the run itself, and it sends nothing more. A request
keeps its whole history."""

SAFETY = """\
## Safety

Whoever can call the service can run what a configuration names: commands of a container or a proposer, with the
rights of the service's user. On loopback without a token these are all users of the machine. With `--token-file`
(readable by its owner only, at least 32 characters) every request needs `Authorization: Bearer TOKEN`; another
address than loopback is served only with one.

Requests under another name than the service's (`Host`) or from a page of another site (`Origin`) are refused before
they are routed; `--allow-host` adds names. Bodies must be JSON, and are limited in size, depth and time, like headers
and connections. Containers are reached on loopback only, unless `--allow-container` names more; the address is
checked where the connection is made, and redirects are not followed. Databases, locks and run files are readable by
their owner only. Refusals name no directory of the machine; what is told of a run that was taken in may."""

ROUTE_TABLE = """\
## Routes

[openapi.json](openapi.json), served as `GET /openapi.json`, has every parameter and every field."""

ERRORS = """\
## Refusals

Everything that is not done is told in one shape, and never with a status of success: `{"error": {"code",
"error_code", "message", "detail", "hint", "retryable", "field_errors", "state", "request_id"}}`. `code` is one of
these, one of a read (`candidate_not_found`, `rollout_not_found`, `artifact_not_found`, `cursor_invalid`,
`limit_invalid`, `filter_invalid`, `sequence_invalid`), or one of the [errors](errors.md); `error_code` names the
class that the Python client raises."""


def render(document: Mapping[str, Any]) -> str:
    """Return the page."""
    return page(
        generated_from("`service_openapi()`", source="rust/crates/synth_optimizer_service/src"),
        INTRO,
        SUBMIT,
        STEERING,
        WATCHING,
        LEASES,
        SAFETY,
        ROUTE_TABLE,
        table(["route", "what it does"], _routes(document)),
        ERRORS,
        table(["code", "status", "again", "hint"], _refusals(document["x-refusals"])),
    )


def render_document(document: Mapping[str, Any]) -> str:
    """Return the OpenAPI document as a file."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _routes(document: Mapping[str, Any]) -> list[list[str]]:
    paths: Mapping[str, Mapping[str, Any]] = document["paths"]
    return [
        [code(f"{method.upper()} {path}"), operation["summary"]]
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]


def _refusals(rows: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    return [
        [code(row["code"]), str(row["status"]), "may help" if row["retryable"] else "", row["hint"]] for row in rows
    ]
