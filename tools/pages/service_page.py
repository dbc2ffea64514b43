"""`docs/reference/http.md`: the service, its routes and its errors; and `docs/reference/openapi.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pages.markdown import code, generated_from, page, table

INTRO = """\
# HTTP

The service keeps a queue of runs in one SQLite file, executes them, and answers over HTTP while they execute and
after. [Operating the service](../guides/service.md) is the guide; this page is the reference.

```sh
synth-optimizers gepa service --db service.sqlite --bind 127.0.0.1:8879 --worker-id local-gepa
```

`--help` lists every setting with its default. SIGTERM, Ctrl-C or the end of the terminal drain the service: it accepts
no more requests, lets calls in flight finish within `--shutdown-grace-seconds`, saves the runs, and exits with 0. The
same command continues them. After a crash, the next start takes back the interrupted run requests before it is ready.
One service at a time uses a database; a second one is refused with the name of the first. Any number of other processes
may work on the same queue with the [Python functions](python.md#the-queue-of-a-service), such as
`workspace_submit_run_request` and `gepa_service_run_next`."""

SUBMIT = """\
## Submitting

`POST /runs` takes `config_path`, a file beneath `--config-root` (by default the directory in which the service was
started), or `config`, the same configuration as TOML text or as an object. Relative paths in an inline configuration
start at the config root. The environment of the service changes no configuration. `overrides` are texts like
`gepa.max_generations=3`.

The service checks a run before it stores the request: everything that `gepa check` checks. `POST /runs/preflight` does
only the check. Every finding has a stage, a code, a field, a location, a message, a hint and whether trying again may
help. `allow_unverified` leaves out the checks that contact the container and the proposer.

* When `201` comes back, the run request is on the disk.
* With an `Idempotency-Key`, the same body returns the same run (`200`, `replayed`). Another body with the same key is
  refused with `409`.
* The highest `priority` executes first, then the oldest.
* Two requests that name the same container or the same cache namespace never execute at once. The one that waits does
  not delay others.
* `auto_start: false` leaves the request in the queue until `POST /worker/run-next` executes it.
* `manual_step: true` makes the run wait for `POST /runs/{run_id}/step` before each step.
* A failed or cancelled run may be submitted again under its id. A run that had not ended continues. A run that had
  ended returns its stored end again, with the warning `run_already_ended`.
* `DELETE /runs/{run_id}` deletes a finished run, and its directory if the service worked in it. Deleting a missing run
  succeeds.

The service refuses a secret in a configuration. Name the variable that holds it, and set that variable in the
environment of the service."""

STEERING = """\
## Control

`cancel`, `pause`, `resume` and `stop` answer with `accepted` (202) or `noop` (200) once the control request is stored.
Where the state of the run does not allow it, `409` carries the current `state`. The run obeys without waiting for the
rest of a batch of rollouts or for the end of a proposer turn.

* `cancel` ends a run for good.
* `pause` saves the run and releases its worker, until `resume`. With `timeout_seconds`, or if the service has
  `--pause-timeout-seconds`, a run that is not resumed in time is cancelled.
* `stop` withdraws the rollouts that were not sent, waits for those that were, and ends the run with its held-out
  evaluation.

Each waiting request reports in `waiting` its reason, since when it waits, and its deadline if it has one (the end of a
lease or of a pause). Workers look for waiting requests at least twice a second. A run without any event for
`--stall-timeout-seconds`, on top of the longest timeout of its own configuration, has failed."""

WATCHING = """\
## Watching

`GET /runs/{run_id}/events` returns a page of events. With `Accept: text/event-stream` it is a stream that ends with the
run. The number of an event is its id: a client that reconnects with `Last-Event-ID` gets every event exactly once. The
service disconnects a client that does not read; the run is not affected.

`GET /runs/{run_id}/best` has an `ETag`. With `?wait_newer_than=SEQUENCE` it answers as soon as there is a newer best
candidate, or with an empty `304`. `GET /metrics` is for Prometheus; its counts of rollouts, tokens, cost and cache hits
begin when the service starts."""

LEASES = """\
## Leases

A worker that executes a request holds a lease with a fencing token, and renews it. The lease ends when the worker is
known to be gone (its process has ended, another service has the database, the machine was restarted), or when it
expires. Leases are measured with the clock of the machine's uptime, so changes of the wall clock do not affect them.
After the end of a lease, every write of the old worker is rejected, in the queue and in the run, and it sends nothing
more. The queue keeps the whole history of a request."""

SAFETY = """\
## Security

Without a token on loopback, every user of the machine is a caller of the service, and can start the commands that a
configuration names, for a container or a proposer, with the rights of the service's user. With `--no-commands` the
service refuses such configurations. With a token it refuses them unless it has `--allow-commands`. With
`--token-file` (readable by its owner only, at least 32 characters) every request needs `Authorization: Bearer TOKEN`.
The service binds to an address other than loopback only with a token.

* Requests under another host name (`Host`) or from a page of another site (`Origin`) are refused before they are
  routed. `--allow-host` adds names.
* Bodies must be JSON. Their size, depth and time are limited, as are headers and connections.
* The service connects to containers on loopback only, unless `--allow-container` names more, and to proposers on
  loopback and at well-known providers, unless `--allow-proposer` names more. The address is checked where the
  connection is made, and redirects are not followed.
* A configuration may name the key variables of well-known providers as `api_key_env`. Other variables, and every
  variable of `container.token_env`, must be named with `--allow-key-env`.
* A submission that is refused has started no process.
* Databases, locks and run files are readable by their owner only.
* Refusals name no directory of the machine. The details of an accepted run may."""

ROUTE_TABLE = """\
## Routes

[openapi.json](openapi.json), served as `GET /openapi.json`, has every parameter and every field."""

ERRORS = """\
## Refusals

Every refusal has the same shape, and never a successful status: `{"error": {"code", "error_code", "message",
"detail", "hint", "retryable", "field_errors", "state", "request_id"}}`. `code` is one of these, one of a read
(`candidate_not_found`, `rollout_not_found`, `turn_not_found`, `artifact_not_found`, `run_not_started`,
`invalid_cursor`, `invalid_limit`, `invalid_offset`, `invalid_filter`, `invalid_sequence`), or one of the
[errors](errors.md); `error_code` names the class that the Python client raises."""


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
        table(["code", "status", "again", "hint"], _refusals(document["x-errors"])),
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
