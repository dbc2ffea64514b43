"""HTTP requests to the service and their replies: address, headers, paths and bodies."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

from synth_optimizers.config import Overrides, override_list
from synth_optimizers.errors import ConfigError, error_of

if TYPE_CHECKING:
    import httpx

ADDRESS = "http://127.0.0.1:8879"
JSON = {"accept": "application/json"}
LONG_POLL_SECONDS = 30.0
"""The longest single long poll in seconds; longer waits use several."""
PREFLIGHT_TIMEOUT_SECONDS = 180.0
"""Seconds that preflight may take, including the start of container and proposer."""
STREAM_IDLE_SECONDS = 60.0
"""Seconds without data after which a stream is opened again."""

NEVER_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError")
"""Exceptions of httpx that are raised before the first byte of a request is sent."""


def _client_timeout(wait: float) -> float:
    return wait


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request to a service."""

    method: str
    path: str
    """The path beneath the address of the service, with quoted segments."""
    params: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None
    """A JSON body."""
    wait: Callable[[float], float | None] = _client_timeout
    """Maps the client's read timeout to that of this request, in seconds; `None` waits without limit."""
    is_repeatable: bool = False
    """Whether repeating the request has no further effect."""

    def build(self, http: "httpx.Client | httpx.AsyncClient", connect: float, timeout: float) -> "httpx.Request":
        """Return the httpx request; `connect` and `timeout` are the timeouts of the client."""
        return http.build_request(
            self.method,
            self.path,
            params=self.params or None,
            headers=self.headers,
            content=self.content,
            timeout=(connect, self.wait(timeout), timeout, timeout),
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a request."""

    status: int
    headers: Mapping[str, str]
    """The headers; names are in lower case or case-insensitive."""
    content: bytes = field(default=b"", repr=False)
    """The body; empty for a reply that is streamed."""

    def json(self) -> Any:  # noqa: ANN401 (any JSON value)
        """Parse the body as JSON; raise `ValueError` if it is not JSON."""
        return json.loads(self.content)


class TransportFailure(Exception):  # noqa: N818 (internal to the client)
    """An HTTP exchange failed."""

    def __init__(self, message: str, *, is_sent: bool, is_timeout: bool = False) -> None:
        super().__init__(message)
        self.is_sent = is_sent
        """Whether the service may have received the request."""
        self.is_timeout = is_timeout

    @classmethod
    def of(cls, problem: Exception) -> Self:
        """Convert an exception of httpx."""
        kind = type(problem).__name__
        return cls(str(problem) or kind, is_sent=kind not in NEVER_SENT, is_timeout=kind.endswith("Timeout"))


def check_address(base_url: str) -> str:
    """Return the address of a service without a trailing slash; refuse an unusable one."""
    hint = f"Write it as {ADDRESS!r}."
    try:
        parts = urlsplit(base_url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address:
        raise error_of(ConfigError, f"{base_url!r} is not the address of a service", hint)
    if parts.username is not None or parts.password is not None:
        raise error_of(ConfigError, "the address contains a password", "Pass the token as `token`.")
    if parts.query or parts.fragment:
        raise error_of(ConfigError, f"the address {base_url!r} has a path, query or fragment", hint)
    return base_url.rstrip("/")


def request_headers(token: str | None) -> dict[str, str]:
    """Return the headers of every request."""
    from synth_optimizers import __version__

    known = {"user-agent": f"synth-optimizers-client/{__version__}"}
    if token is None:
        return known
    if not (token.isascii() and token.isprintable() and token.strip()):
        # The message never shows the token, not even an invalid one.
        message = "the token is empty or has invalid characters"
        raise error_of(ConfigError, message, "Pass the text of the token.")
    return {**known, "authorization": f"Bearer {token}"}


def get(path: str, **params: object) -> Request:
    """Build a GET request; parameters that are `None` are left out."""
    named = {name: str(value) for name, value in params.items() if value is not None}
    return Request("GET", path, named, JSON, is_repeatable=True)


def post(path: str, body: Mapping[str, Any], wait: Callable[[float], float | None] = _client_timeout) -> Request:
    """Build a POST request; values that are `None` are left out."""
    named = {name: value for name, value in body.items() if value is not None}
    content = json.dumps(named, ensure_ascii=False, allow_nan=False, default=_to_json).encode()
    return Request("POST", path, {}, {**JSON, "content-type": "application/json"}, content, wait)


def run_path(run_id: str, *parts: str) -> str:
    """Return the path of a run, or of one of its resources."""
    for part in (run_id, *parts):
        if part in ("", ".", ".."):
            # Proxies would normalize such a path into another one.
            raise ValueError(f"{part!r} is not a valid part of the path of a run")
    return "/".join(["", "runs", *(quote(part, safe="") for part in (run_id, *parts))])


def submission(
    path: str,
    config_path: str | os.PathLike[str] | None,
    config: Mapping[str, Any] | str | None,
    options: Mapping[str, Any],
    *,
    overrides: Overrides,
    idempotency_key: str | None = None,
) -> Request:
    """Build the request that submits a configuration, or runs its preflight."""
    if (config_path is None) == (config is None):
        raise TypeError("pass either config_path, a file that the service can read, or config, a mapping or TOML text")
    body = {"config": config} if config_path is None else {"config_path": os.fspath(config_path)}
    named = {**body, **options, "overrides": override_list(overrides) or None}
    sent = post(path, named, wait=lambda timeout: max(timeout, PREFLIGHT_TIMEOUT_SECONDS))
    if idempotency_key is None:
        # Preflight changes nothing.
        return replace(sent, is_repeatable=True)
    if not idempotency_key or not all("!" <= each <= "~" for each in idempotency_key):
        raise ValueError(f"idempotency_key must have visible ASCII characters only, not {idempotency_key!r}")
    return replace(sent, headers={**sent.headers, "idempotency-key": idempotency_key}, is_repeatable=True)


def stream(run_id: str, after: int) -> Request:
    """Build the request that streams the events with a sequence number greater than `after`."""
    resumed = {"last-event-id": str(after)} if after >= 0 else {}
    headers = {"accept": "text/event-stream", "cache-control": "no-store", **resumed}
    request = get(run_path(run_id, "events"), after=after)
    return replace(request, headers=headers, wait=lambda timeout: max(timeout, STREAM_IDLE_SECONDS))


def artifact(run_id: str, name: str) -> Request:
    """Build the request for the bytes of an artifact."""
    request = get(run_path(run_id, "artifacts", name))
    # A compressed body would have another digest.
    return replace(request, headers={"accept": "*/*", "accept-encoding": "identity"})


def report(run_id: str) -> Request:
    """Build the request for the report of a run."""
    return replace(get(run_path(run_id, "report")), headers={"accept": "text/html"})


def best(run_id: str, newer_than: int | None, seconds: float) -> Request:
    """Build the request for the best candidate; with `newer_than`, it waits for a newer one."""
    whole = None if newer_than is None else math.ceil(min(seconds, LONG_POLL_SECONDS))
    request = get(run_path(run_id, "best"), wait_newer_than=newer_than, timeout_seconds=whole)
    # The answer arrives only after the wait.
    return replace(request, wait=lambda timeout: timeout + (whole or 0))


def next_page_cursor(page: Mapping[str, Any]) -> dict[str, Any]:
    """Return the query parameter for the page after this one."""
    return {} if page.get("next_cursor") is None else {"cursor": page["next_cursor"]}


def next_page_after(page: Mapping[str, Any]) -> dict[str, Any]:
    """Return the query parameter for the page of events after this one: the last sequence number."""
    found = [known["sequence_number"] for known in page["items"]]
    return {"after": found[-1]} if found and found[-1] < (page["last_sequence"] or 0) else {}


def next_page_since(page: Mapping[str, Any]) -> dict[str, Any]:
    """Return the query parameter for the page of scores after this one."""
    return {"since": page["next_since"]} if page.get("has_more") else {}


def format_time(at: str | datetime | None) -> str | None:
    """Format a time for the service; a time without a zone is local."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z") if isinstance(at, datetime) else at


def _to_json(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a configuration cannot contain {value!r}, which is not a JSON value")
