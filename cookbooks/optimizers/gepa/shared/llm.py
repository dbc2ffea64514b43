"""Calls the model of a policy: any endpoint that speaks OpenAI's Chat Completions.

Each rollout names the model. The key is read from the variable `POLICY_API_KEY` of the container's environment, and no
text of this module contains it. If that environment sets `POLICY_BASE_URL`, every request goes to that address.
Otherwise the rollout names the address, and the key is sent there only by https or to loopback.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from weakref import WeakKeyDictionary

import httpx

Json = dict[str, Any]

KEY = "POLICY_API_KEY"
# If it is set, no rollout can name another address.
ADDRESS = "POLICY_BASE_URL"
DEFAULT_ADDRESS = "https://api.openai.com/v1"

TIMEOUT_SECONDS = 120.0
RETRIES = 4
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 20.0
# After the last retry, the run waits this long before it sends the rollout again.
LAST_PAUSE_SECONDS = 5
LONGEST_PROBLEM = 300
PASSING = frozenset({408, 409, 429, 500, 502, 503, 504})
# Their texts quote headers and addresses, which contain secrets.
_UNTOLD = httpx.LocalProtocolError | httpx.InvalidURL

_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()


class ModelError(Exception):
    """A model that did not answer, a useless answer, or a wrong request: a status for the SDK, and the cause.

    The bridge reads `retry_after`: with a number, the run waits for the model.
    """

    def __init__(self, status_code: int, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status_code = status_code
        self.detail = detail
        self.retry_after = retry_after


@dataclass(frozen=True)
class Completion:
    """The answer of a model, and the tokens that the endpoint counted. Unreported numbers are absent."""

    text: str
    usage: dict[str, int | float]


async def complete(messages: Sequence[Mapping[str, str]], config: Mapping[str, Any]) -> Completion:
    """Call the model that a rollout's `policy` names.

    The keys `model`, `base_url` and `max_tokens` of `config` are read, and below `config.config` also `base_url`,
    `temperature`, `seed` and `timeout_seconds`. A failure raises a ModelError with status 502 and the cause.
    """
    model = config.get("model")
    if not isinstance(model, str) or not model:
        raise ModelError(status_code=422, detail="policy.model is missing: name the model in [policy] of the config")
    details: Mapping[str, Any] = config.get("config") or {}
    body: Json = {"model": model, "messages": [dict(message) for message in messages]}
    body["temperature"] = details.get("temperature", 0.0)
    if details.get("seed") is not None:
        body["seed"] = details["seed"]
    if config.get("max_tokens") is not None:
        body["max_tokens"] = config["max_tokens"]
    address = (
        os.environ.get(ADDRESS)
        or config.get("base_url")
        or config.get("inference_url")
        or details.get("base_url")
        or DEFAULT_ADDRESS
    )
    url = f"{str(address).rstrip('/')}/chat/completions"
    return _read(url, await _post(url, body, float(details.get("timeout_seconds", TIMEOUT_SECONDS))))


async def _post(url: str, body: Json, timeout: float) -> httpx.Response:
    """Send a request; retry temporary failures."""
    key = _key() if _is_trusted(url) else ""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    pause = FIRST_PAUSE_SECONDS
    # A failure that may pass, and before which nothing was paid, makes the run wait. Any other one fails the rollout.
    retry_after: int | None = LAST_PAUSE_SECONDS
    for tries_left in reversed(range(RETRIES + 1)):
        wait = pause
        try:
            reply = await _client().post(url, json=body, headers=headers, timeout=timeout)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            problem = _exchange_error(error)
            # Sent but not answered in time: a retry would only cost again.
            if isinstance(error, httpx.ReadTimeout | httpx.UnsupportedProtocol | _UNTOLD):
                retry_after = None
                break
        else:
            if reply.is_success:
                return reply
            problem = f"HTTP {reply.status_code}: {_error_message(reply)}"
            if reply.status_code not in PASSING:
                retry_after = None
                break
            wait = _retry_delay(reply, pause)
        if tries_left:
            await asyncio.sleep(min(wait, LONGEST_PAUSE_SECONDS))
            pause *= 2
    hint = "" if key else f" ({_missing_key_reason()})"
    # An endpoint may repeat the key that it refuses. The key is redacted before the text is cut, so that no part of it
    # remains.
    problem = (problem.replace(key, "***") if key else problem)[:LONGEST_PROBLEM]
    detail = f"the policy's model at {_without_password(url)} did not answer: {problem}{hint}"
    raise ModelError(status_code=502, detail=detail, retry_after=retry_after)


def _key() -> str:
    """Return the key without surrounding space.

    A key that is invalid in a header is refused, because errors would quote it.
    """
    key = os.environ.get(KEY, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ModelError(status_code=502, detail=f"{KEY} of the container's environment holds characters of no key")
    return key


def _is_trusted(url: str) -> bool:
    """Return whether the key may be sent to an address: the container's own one, https, or loopback."""
    if os.environ.get(ADDRESS):
        return True
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.host))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _missing_key_reason() -> str:
    """Return why a request had no key."""
    if not os.environ.get(KEY, "").strip():
        return f"{KEY} is not set in the container's environment"
    return f"{KEY} is sent by https or to loopback only, or to {ADDRESS} of the container's environment"


def _exchange_error(error: Exception) -> str:
    """Return the error for a failed HTTP exchange."""
    name = type(error).__name__
    return name if isinstance(error, _UNTOLD) or not str(error) else f"{name}: {error}"


def _without_password(url: str) -> str:
    """Return an address without user name and password."""
    try:
        return str(httpx.URL(url).copy_with(userinfo=b""))
    except httpx.InvalidURL:
        return "an address that is no URL"


def _client() -> httpx.AsyncClient:
    """Return the HTTP client of this event loop: a new one for each call would load all certificates again."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = httpx.AsyncClient(follow_redirects=False)
    return _clients[loop]


def _read(url: str, reply: httpx.Response) -> Completion:
    """Parse a chat completion."""
    try:
        document = reply.json()
        text = document["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ModelError(
            status_code=502, detail=f"the answer of {_without_password(url)} is no chat completion"
        ) from error
    if not isinstance(text, str):
        raise ModelError(status_code=502, detail=f"the answer of {_without_password(url)} holds no text")
    told = document.get("usage") or {}
    names = ("prompt_tokens", "completion_tokens", "total_tokens", "cost_usd")
    return Completion(text, {name: told[name] for name in names if isinstance(told.get(name), int | float)})


def _error_message(reply: httpx.Response) -> str:
    """Return the error message of an endpoint."""
    try:
        error = reply.json()["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return str(reply.text)


def _retry_delay(reply: httpx.Response, pause: float) -> float:
    """Return the delay that the endpoint asks for, or the default delay."""
    try:
        return float(reply.headers.get("retry-after", pause))
    except ValueError:
        return pause
