"""Converts error answers of a service into the exceptions that the same problem raises without a service."""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Protocol, TypeVar, runtime_checkable

import synth_optimizers.errors as classes
from synth_optimizers.client.requests import Reply, TransportFailure
from synth_optimizers.client.result_records import Best
from synth_optimizers.errors import CancelledError, OptimizerHttpError, SynthOptimizerError, error_of, error_table
from synth_optimizers.findings import Finding
from synth_optimizers.preflight import PreflightFinding

T = TypeVar("T")
E = TypeVar("E", bound=SynthOptimizerError)
LOCATION = re.compile(r"(?P<source>.+?):(?P<line>\d+)(:(?P<column>\d+))?")
START_HINT = "Start a service with `synth-optimizers gepa service --db service.sqlite`, or correct the address."
EXCERPT_CHARS = 200
"""The number of characters of an unexpected answer that an error shows."""
DIGEST_CHARS = 64
"""The length of a SHA-256 digest in hex."""


@runtime_checkable
class ServiceErrorDetails(Protocol):
    """The attributes that the client adds to its exceptions, besides `detail`, `hint` and `findings`.

    >>> try:
    ...     client.submit(config_path="gepa.toml")
    ... except SynthOptimizerError as error:
    ...     if isinstance(error, ServiceErrorDetails) and error.retryable:
    ...         ...
    """

    status: int | None
    """The HTTP status; `None` when no answer arrived, and for a run that failed or was cancelled."""
    code: str
    """The reason, such as `run_not_found`; `error_code` is the code of the exception class."""
    field_errors: tuple[PreflightFinding, ...]
    """Every preflight finding, each with its field."""
    request_id: str | None
    """The id of the HTTP request in the log of the service."""
    retryable: bool
    """Whether the same call may succeed later."""
    state: str | None
    """The state of the run that the error concerns."""


def error_from_reply(reply: Reply, address: str) -> SynthOptimizerError:
    """Convert an error reply into an exception; a reply of another shape becomes an error that says so."""
    try:
        known = reply.json()["error"]
        error_code, code, message = str(known["error_code"]), str(known["code"]), str(known["message"])
    except (ValueError, KeyError, TypeError):
        return unexpected_reply(reply, address)
    problems = tuple(parse_preflight_finding(found) for found in known.get("field_errors") or ())
    error = _build_error(error_code, "\n".join([message, *(_finding_line(found) for found in problems)]), known)
    error.findings = tuple(_to_finding(found) for found in problems if found.field)
    return _with_attributes(
        error,
        status=reply.status,
        code=code,
        field_errors=problems,
        request_id=known.get("request_id") or reply.headers.get("x-request-id"),
        retryable=bool(known.get("retryable")),
        state=known.get("state"),
    )


def unexpected_reply(reply: Reply, address: str, problem: str | None = None) -> OptimizerHttpError:
    """Return the error for an answer that does not come from this service."""
    if problem is None and 300 <= reply.status < 400:
        problem = f"it redirects to {reply.headers.get('location')!r}"
    what = problem or f"it answered {reply.status} without an error document"
    shown = reply.content[: 4 * EXCERPT_CHARS].decode("utf-8", errors="replace")[:EXCERPT_CHARS]
    hint = f"Check the address, and that service and client have the same version. {START_HINT}"
    error = error_of(OptimizerHttpError, f"the server at {address} is not this service: {what}", hint, shown or None)
    request_id = reply.headers.get("x-request-id")
    # A proxy in front of the service may be busy.
    retryable = reply.status in (429, 502, 503, 504)
    return _with_attributes(
        error, status=reply.status, code="not_a_service", request_id=request_id, retryable=retryable
    )


def parse_answer(read: Callable[[Any], T], known: object, address: str, reply: Reply | None = None) -> T:
    """Parse an answer or a part of it; raise the error for an unexpected answer if its shape is wrong."""
    try:
        return read(known)
    except (ValueError, TypeError, AttributeError) as problem:
        problem_text = f"its answer is not the expected JSON ({problem})"
        raise unexpected_reply(reply or Reply(200, {}), address, problem_text) from problem
    except KeyError as problem:
        raise unexpected_reply(reply or Reply(200, {}), address, f"its answer has no {problem}") from problem


def parse_best(reply: Reply, address: str) -> Best | None:
    """Parse the best candidate; return `None` if there is none yet, or none that is newer."""
    if reply.status == 404:
        error = error_from_reply(reply, address)
        if "best" in str(getattr(error, "code", "")):
            return None
        raise error
    return (
        None if reply.status in (204, 304) else parse_answer(lambda known: Best.of(known.json()), reply, address, reply)
    )


def check_digest(found: str, reply: Reply, what: str, address: str) -> None:
    """Raise unless a file has the digest that the service sent, if it sent one."""
    expected = reply.headers.get("etag", "").removeprefix("W/").strip('"').removeprefix("sha256:").lower()
    if len(expected) == DIGEST_CHARS and expected != found:
        message = f"{what} from {address} is damaged: its digest is {found} instead of {expected}"
        hint = "Download it again. If it is still damaged, the service's copy is damaged too."
        raise error_of(OptimizerHttpError, message, hint)


def connection_failure(failure: TransportFailure, address: str) -> OptimizerHttpError:
    """Return the error for a failed HTTP exchange."""
    if failure.is_timeout and failure.is_sent:
        what, code = f"the service at {address} did not answer in time: {failure}", "timed_out"
        hint = "Check the state before you retry: the request may have succeeded. `timeout` of the client is the limit."
    elif failure.is_sent:
        what, code = f"the connection to the service at {address} was closed: {failure}", "connection_broken"
        hint = "Check the state before you retry: the request may have succeeded."
    else:
        what, code, hint = f"no service answers at {address}: {failure}", "unreachable", START_HINT
    error = error_of(OptimizerHttpError, what, hint)
    return _with_attributes(error, status=None, code=code, request_id=None, retryable=True)


def run_failure(run_id: str, status: str, known: Mapping[str, Any] | None) -> SynthOptimizerError:
    """Return the exception for a run that failed or was cancelled, of the class of its cause."""
    known = known or {}
    fallback = "synth_optimizer_cancelled" if status == "cancelled" else "synth_optimizer_failed"
    message = known.get("message") or f"it is {status}"
    error = _build_error(str(known.get("error_code") or fallback), f"run {run_id}: {message}", known)
    if status == "cancelled" and not isinstance(error, CancelledError):
        error = _build_error(fallback, f"run {run_id}: {message}", known)
    names = [each.name for each in fields(Finding)]
    error.findings = tuple(
        Finding(**{name: found.get(name) for name in names}) for found in known.get("findings") or ()
    )
    code, is_retryable = str(known.get("reason_code") or error.error_code), bool(known.get("retryable"))
    return _with_attributes(error, status=None, code=code, request_id=None, retryable=is_retryable, state=status)


def parse_preflight_finding(known: Mapping[str, Any]) -> PreflightFinding:
    """Parse a field error or a warning."""
    defaults: dict[str, Any] = {"stage": "config", "field": None, "location": None, "retryable": False}
    defaults |= {"code": "", "message": "", "hint": ""}
    return PreflightFinding(**{name: known.get(name) or default for name, default in defaults.items()})


def _build_error(error_code: str, message: str, known: Mapping[str, Any]) -> SynthOptimizerError:
    name = next((row["exception"] for row in error_table() if row["error_code"] == error_code), "SynthOptimizerError")
    kind: type[SynthOptimizerError] = getattr(classes, name)
    hint, detail = (None if known.get(name) is None else str(known[name]) for name in ("hint", "detail"))
    return error_of(kind, message.removeprefix(f"{kind.error_code}: "), hint, detail)


def _with_attributes(error: E, **facts: object) -> E:
    """Set the attributes of `ServiceErrorDetails` on an exception."""
    for name, value in {"field_errors": (), "state": None, **facts}.items():
        setattr(error, name, value)
    return error


def _finding_line(found: PreflightFinding) -> str:
    where = " ".join(part for part in (found.field, f"({found.location})" if found.location else "") if part)
    return f"  {where or found.stage}: {found.message}"


def _to_finding(found: PreflightFinding) -> Finding:
    """Convert a field error into a finding."""
    placed = LOCATION.fullmatch(found.location or "")
    source = placed["source"] if placed else found.location or found.stage
    line = int(placed["line"]) if placed else None
    column = int(placed["column"]) if placed and placed["column"] else None
    return Finding("error", found.code, found.field or "", source, line, column, found.message, found.hint, None)
