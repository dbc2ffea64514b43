"""What is sent to a service and what comes back: its address, every request that it understands, and the reply."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

from synth_optimizers.errors import ConfigError, error_of

if TYPE_CHECKING:
    import httpx

ADDRESS = "http://127.0.0.1:8879"
JSON = {"accept": "application/json"}
LONG_POLL = 30.0
"""The most that one wait for something newer takes; longer ones are several."""
LAUNCH = 180.0
"""Seconds that a check of container and proposer may take; both may have to be started."""
SILENCE = 60.0
"""Seconds without a sign of life after which a stream is opened anew."""

NEVER_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError")
"""Failures of httpx before the first byte of a request."""


def _usual(wait: float) -> float:
    return wait


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a service."""

    method: str
    path: str
    """Beneath the address of the service, with its parts quoted."""
    params: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None
    """A JSON document."""
    wait: Callable[[float], float | None] = _usual
    """From the usual wait of the client, the seconds in which the next bytes must come; `None`: however long."""
    is_repeatable: bool = False
    """Whether the same request a second time does nothing that the first has not done."""

    def build(self, http: "httpx.Client | httpx.AsyncClient", connect: float, usual: float) -> "httpx.Request":
        """Return the request as httpx sends it; `connect` and `usual` are the waits that it does not name itself."""
        return http.build_request(
            self.method,
            self.path,
            params=self.params or None,
            headers=self.headers,
            content=self.content,
            timeout=(connect, self.wait(usual), usual, usual),
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """By name, in lower case or in any."""
    content: bytes = field(default=b"", repr=False)
    """The body; empty for a stream that is read on."""

    def json(self) -> Any:  # noqa: ANN401 (whatever the body holds)
        """Read the body as JSON; `ValueError` when it is none."""
        return json.loads(self.content)


class TransportFailure(Exception):  # noqa: N818 (it never leaves the client)
    """The exchange broke off."""

    def __init__(self, message: str, *, is_sent: bool, is_timeout: bool = False) -> None:
        super().__init__(message)
        self.is_sent = is_sent
        """Whether the service may have seen the request."""
        self.is_timeout = is_timeout

    @classmethod
    def of(cls, problem: Exception) -> Self:
        """Return what an error of httpx means."""
        kind = type(problem).__name__
        return cls(str(problem) or kind, is_sent=kind not in NEVER_SENT, is_timeout=kind.endswith("Timeout"))


def checked_address(base_url: str) -> str:
    """Return the address of a service without the slash at its end; one that cannot be used is refused."""
    hint = f"Write it as {ADDRESS!r}."
    try:
        parts = urlsplit(base_url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address:
        raise error_of(ConfigError, f"{base_url!r} is not the address of a service", hint)
    if parts.username is not None or parts.password is not None:
        raise error_of(ConfigError, "the address of a service holds no password", "Name the token with `token`.")
    if parts.query or parts.fragment:
        raise error_of(ConfigError, f"{base_url!r} has more than an address", hint)
    return base_url.rstrip("/")


def headers_of(token: str | None) -> dict[str, str]:
    """Return what every request carries."""
    from synth_optimizers import __version__

    known = {"user-agent": f"synth-optimizers-client/{__version__}"}
    if token is None:
        return known
    if not (token.isascii() and token.isprintable() and token.strip()):
        # The token is not shown, not even a bad one.
        message = "the token is empty or has characters that no token has"
        raise error_of(ConfigError, message, "Name the text of the token.")
    return {**known, "authorization": f"Bearer {token}"}


def get(path: str, **params: object) -> Request:
    """Ask for something; parameters that are `None` are not named."""
    named = {name: str(value) for name, value in params.items() if value is not None}
    return Request("GET", path, named, JSON, is_repeatable=True)


def post(path: str, body: Mapping[str, Any], wait: Callable[[float], float | None] = _usual) -> Request:
    """Ask to do something; values that are `None` are not named."""
    named = {name: value for name, value in body.items() if value is not None}
    content = json.dumps(named, ensure_ascii=False, allow_nan=False, default=_plain).encode()
    return Request("POST", path, {}, {**JSON, "content-type": "application/json"}, content, wait)


def run_path(run_id: str, *parts: str) -> str:
    """Return the path of a run, or of a part of it."""
    for part in (run_id, *parts):
        if part in ("", ".", ".."):
            # Whatever is on the way would take such a path for another one.
            raise ValueError(f"{part!r} is not the name of a run or of something in it")
    return "/".join(["", "runs", *(quote(part, safe="") for part in (run_id, *parts))])


def submission(
    path: str,
    config_path: str | os.PathLike[str] | None,
    config: Mapping[str, Any] | str | None,
    options: Mapping[str, Any],
    *,
    overrides: Sequence[str],
    idempotency_key: str | None = None,
) -> Request:
    """Submit a configuration, or have it checked."""
    if (config_path is None) == (config is None):
        raise TypeError("name either config_path, a file that the service can read, or config, a mapping or TOML text")
    if isinstance(overrides, str):
        raise TypeError("overrides is a list of texts such as 'gepa.max_generations=3', not one text")
    body = {"config": config} if config_path is None else {"config_path": os.fspath(config_path)}
    named = {**body, **options, "overrides": list(overrides) or None}
    sent = post(path, named, wait=lambda usual: max(usual, LAUNCH))
    if idempotency_key is None:
        # A check changes nothing.
        return replace(sent, is_repeatable=True)
    if not idempotency_key or not all("!" <= each <= "~" for each in idempotency_key):
        raise ValueError(f"idempotency_key must have visible ASCII characters only, not {idempotency_key!r}")
    return replace(sent, headers={**sent.headers, "idempotency-key": idempotency_key}, is_repeatable=True)


def stream(run_id: str, after: int) -> Request:
    """Ask for the events as they happen, from the one after a number on."""
    resumed = {"last-event-id": str(after)} if after >= 0 else {}
    headers = {"accept": "text/event-stream", "cache-control": "no-store", **resumed}
    request = get(run_path(run_id, "events"), after=after)
    return replace(request, headers=headers, wait=lambda usual: max(usual, SILENCE))


def artifact(run_id: str, name: str) -> Request:
    """Ask for the bytes of a file of a run."""
    request = get(run_path(run_id, "artifacts", name))
    # What is packed on the way would have another digest.
    return replace(request, headers={"accept": "*/*", "accept-encoding": "identity"})


def best(run_id: str, newer_than: int | None, seconds: float) -> Request:
    """Ask for the best candidate, or as soon as there is a newer one."""
    whole = None if newer_than is None else math.ceil(min(seconds, LONG_POLL))
    request = get(run_path(run_id, "best"), wait_newer_than=newer_than, timeout_seconds=whole)
    # The answer of a wait comes after the wait.
    return replace(request, wait=lambda usual: usual + (whole or 0))


def by_cursor(page: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameter that asks for the page after this one."""
    return {} if page.get("next_cursor") is None else {"cursor": page["next_cursor"]}


def by_event(page: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same for events, of which the last one is known."""
    found = [known["sequence_number"] for known in page["items"]]
    return {"after": found[-1]} if found and found[-1] < (page["last_sequence"] or 0) else {}


def by_since(page: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same for scores, which tell where to go on."""
    return {"since": page["next_since"]} if page.get("has_more") else {}


def moment(at: str | datetime | None) -> str | None:
    """Write a time as the service reads it; one without a zone is local."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z") if isinstance(at, datetime) else at


def _plain(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a configuration cannot hold {value!r}, which JSON does not know")
