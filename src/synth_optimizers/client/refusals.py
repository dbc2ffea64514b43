"""Refusals of a service as the exceptions that the same problem raises without one."""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Protocol, TypeVar, runtime_checkable

import synth_optimizers.errors as classes
from synth_optimizers.client.models import Best
from synth_optimizers.client.requests import Reply, TransportFailure
from synth_optimizers.errors import CancelledError, OptimizerHttpError, SynthOptimizerError, error_of, error_table
from synth_optimizers.findings import Finding
from synth_optimizers.preflight import Blocker

T = TypeVar("T")
E = TypeVar("E", bound=SynthOptimizerError)
PLACE = re.compile(r"(?P<source>.+?):(?P<line>\d+)(:(?P<column>\d+))?")
START = "Start one with `synth-optimizers gepa service --db service.sqlite`, or name the address of the one you mean."
SHOWN = 200
"""Characters of a foreign answer that are shown."""
DIGEST = 64
"""Characters of a SHA-256 digest in hex."""


@runtime_checkable
class Refused(Protocol):
    """What an exception of the client knows about the refusal, besides `detail`, `hint` and `findings`.

    >>> try:
    ...     client.submit(config_path="gepa.toml")
    ... except SynthOptimizerError as error:
    ...     if isinstance(error, Refused) and error.retryable:
    ...         ...
    """

    status: int | None
    """The HTTP status; `None` when no answer came, and for a run that did not end well."""
    code: str
    """The reason, such as `run_not_found`; `error_code` is the code of the class."""
    field_errors: tuple[Blocker, ...]
    """Everything that stands in the way, each with its field."""
    request_id: str | None
    """The name of the exchange in the log of the service."""
    retryable: bool
    """Whether the same may work later."""
    state: str | None
    """The state of the run that it is about."""


def refusal_of(reply: Reply, address: str) -> SynthOptimizerError:
    """Read the error of a reply; a reply that is not one of a service is told as that."""
    try:
        known = reply.json()["error"]
        error_code, code, message = str(known["error_code"]), str(known["code"]), str(known["message"])
    except (ValueError, KeyError, TypeError):
        return not_ours(reply, address)
    problems = tuple(blocker_of(found) for found in known.get("field_errors") or ())
    error = _raised(error_code, "\n".join([message, *(_line(found) for found in problems)]), known)
    error.findings = tuple(_finding(found) for found in problems if found.field)
    return _with(
        error,
        status=reply.status,
        code=code,
        field_errors=problems,
        request_id=known.get("request_id") or reply.headers.get("x-request-id"),
        retryable=bool(known.get("retryable")),
        state=known.get("state"),
    )


def not_ours(reply: Reply, address: str, problem: str | None = None) -> OptimizerHttpError:
    """Return the error for an answer that no service of ours gives."""
    if problem is None and 300 <= reply.status < 400:
        problem = f"it sends on to {reply.headers.get('location')!r}"
    what = problem or f"it answered {reply.status} without an error of a service"
    shown = reply.content[: 4 * SHOWN].decode("utf-8", errors="replace")[:SHOWN]
    hint = f"Check the address, and that the service has the version of the client. {START}"
    error = error_of(OptimizerHttpError, f"what answers at {address} is not the service: {what}", hint, shown or None)
    request_id = reply.headers.get("x-request-id")
    # Whatever stands before the service may be busy.
    retryable = reply.status in (429, 502, 503, 504)
    return _with(error, status=reply.status, code="not_a_service", request_id=request_id, retryable=retryable)


def shaped(read: Callable[[Any], T], known: object, address: str, reply: Reply | None = None) -> T:
    """Read an answer, or a part of it; one of another shape is not ours."""
    try:
        return read(known)
    except (ValueError, TypeError, AttributeError) as problem:
        told = f"its answer is not the JSON that was asked for ({problem})"
        raise not_ours(reply or Reply(200, {}), address, told) from problem
    except KeyError as problem:
        raise not_ours(reply or Reply(200, {}), address, f"its answer has no {problem}") from problem


def best_of(reply: Reply, address: str) -> Best | None:
    """Read the best candidate; `None` where there is none yet, or none that is newer."""
    if reply.status == 404:
        error = refusal_of(reply, address)
        if "best" in str(getattr(error, "code", "")):
            return None
        raise error
    return None if reply.status in (204, 304) else shaped(lambda known: Best.of(known.json()), reply, address, reply)


def check_digest(found: str, reply: Reply, what: str, address: str) -> None:
    """Raise unless the digest of a file is the one that the service names, if it names one."""
    told = reply.headers.get("etag", "").removeprefix("W/").strip('"').removeprefix("sha256:").lower()
    if len(told) == DIGEST and told != found:
        message = f"{what} from {address} is damaged: its digest is {found} instead of {told}"
        hint = "Download it again; when that does not help, the file is damaged where the service keeps it."
        raise error_of(OptimizerHttpError, message, hint)


def unreachable(failure: TransportFailure, address: str) -> OptimizerHttpError:
    """Return the error for an exchange that broke off."""
    if failure.is_timeout and failure.is_sent:
        what, code = f"the service at {address} did not answer in time: {failure}", "timed_out"
        hint = "Look at the state before you ask again: it may have been done. `timeout` of the client is the wait."
    elif failure.is_sent:
        what, code = f"the connection to the service at {address} broke: {failure}", "connection_broken"
        hint = "Look at the state before you ask again: it may have been done."
    else:
        what, code, hint = f"no service answers at {address}: {failure}", "unreachable", START
    error = error_of(OptimizerHttpError, what, hint)
    return _with(error, status=None, code=code, request_id=None, retryable=True)


def ending_of(run_id: str, status: str, known: Mapping[str, Any] | None) -> SynthOptimizerError:
    """Return the exception of a run that did not end well: that of its cause."""
    known = known or {}
    fallback = "synth_optimizer_cancelled" if status == "cancelled" else "synth_optimizer_failed"
    told = known.get("message") or f"it is {status}"
    error = _raised(str(known.get("error_code") or fallback), f"run {run_id}: {told}", known)
    if status == "cancelled" and not isinstance(error, CancelledError):
        error = _raised(fallback, f"run {run_id}: {told}", known)
    names = [each.name for each in fields(Finding)]
    error.findings = tuple(
        Finding(**{name: found.get(name) for name in names}) for found in known.get("findings") or ()
    )
    code, is_retryable = str(known.get("reason_code") or error.error_code), bool(known.get("retryable"))
    return _with(error, status=None, code=code, request_id=None, retryable=is_retryable, state=status)


def blocker_of(known: Mapping[str, Any]) -> Blocker:
    """Read a field error or a warning."""
    unsaid: dict[str, Any] = {"stage": "config", "field": None, "place": None, "retryable": False}
    unsaid |= {"code": "", "message": "", "hint": ""}
    return Blocker(**{name: known.get(name) or otherwise for name, otherwise in unsaid.items()})


def _raised(error_code: str, message: str, known: Mapping[str, Any]) -> SynthOptimizerError:
    name = next((row["exception"] for row in error_table() if row["error_code"] == error_code), "SynthOptimizerError")
    kind: type[SynthOptimizerError] = getattr(classes, name)
    hint, detail = (None if known.get(name) is None else str(known[name]) for name in ("hint", "detail"))
    return error_of(kind, message.removeprefix(f"{kind.error_code}: "), hint, detail)


def _with(error: E, **facts: object) -> E:
    """Put the facts of `Refused` on an exception, whose class does not know them."""
    for name, value in {"field_errors": (), "state": None, **facts}.items():
        setattr(error, name, value)
    return error


def _line(found: Blocker) -> str:
    where = " ".join(part for part in (found.field, f"({found.place})" if found.place else "") if part)
    return f"  {where or found.stage}: {found.message}"


def _finding(found: Blocker) -> Finding:
    """Name the place of a field error as findings do."""
    placed = PLACE.fullmatch(found.place or "")
    source = placed["source"] if placed else found.place or found.stage
    line = int(placed["line"]) if placed else None
    column = int(placed["column"]) if placed and placed["column"] else None
    return Finding("error", found.code, found.field or "", source, line, column, found.message, found.hint, None)
