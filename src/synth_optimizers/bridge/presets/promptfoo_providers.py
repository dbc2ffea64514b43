"""Calls promptfoo's providers that need no Node: Python files, OpenAI-compatible endpoints, and `echo`."""

from __future__ import annotations

import asyncio
import http.client
import inspect
import json
import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BridgeError
from ..loading import load_object
from ..values import cut, safe_repr
from .templates import render_all, shown

DEFAULT_URL = "https://api.openai.com/v1"
DEFAULT_KEY = "OPENAI_API_KEY"
TIMEOUT_SECONDS = 300
ATTEMPTS = 5
MAX_PAUSE_SECONDS = 60.0
PARAMETERS = (
    "temperature", "max_tokens", "max_completion_tokens", "top_p", "frequency_penalty", "presence_penalty", "seed",
    "stop", "response_format", "reasoning_effort", "logit_bias", "n",
)  # fmt: skip
KNOWN = "echo, file://provider.py, python:provider.py, openai:chat:MODEL with any config.apiBaseUrl"


class Reply(NamedTuple):
    """What a provider answered."""

    output: str
    usage: dict[str, Any]


Provider = Callable[[Any, Mapping[str, Any]], Reply]
"""Takes a prompt (a text or chat messages) and the variables of the test."""


def load_provider(entry: Any, folder: Path, place: str) -> tuple[Provider, str | None]:
    """Return the provider of a config's entry, and the file that defines it."""
    name, config = _named(entry, place)
    config = render_all(config, {"env": dict(os.environ)}, keep_unknown=True)
    if name == "echo":
        return lambda prompt, _: Reply(
            _text(prompt), {"prompt_tokens": 0, "completion_tokens": 0, "cost_usd": 0.0}
        ), None
    python = re.fullmatch(r"(?:python:|file://)(.+\.py)(?::(\w+))?", name)
    if python:
        return _python(name, config, folder / python[1], python[2] or "call_api")
    found = re.fullmatch(r"openai:(?:chat:)?([^:]+(?::.+)?)", name)
    if found and found[1].partition(":")[0] not in (
        "completion",
        "embedding",
        "image",
        "responses",
        "realtime",
        "assistant",
    ):
        return _openai(found[1], config, place), None
    raise BridgeError(
        "provider_unsupported", f"{place}: the provider {name!r} cannot be called here", f"Use one of: {KNOWN}."
    )


def _named(entry: Any, place: str) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, Mapping) and isinstance(entry.get("id"), str):
        return entry["id"], dict(entry.get("config") or {})
    if isinstance(entry, Mapping) and len(entry) == 1:
        name, options = next(iter(entry.items()))
        if isinstance(name, str) and isinstance(options, Mapping):
            return name, dict(options.get("config") or {})
    raise BridgeError(
        "provider_invalid", f"{place} is {safe_repr(entry, 80)}, not a provider", "Write its name, or id and config."
    )


def _text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)


def _python(name: str, config: dict[str, Any], path: Path, function: str) -> tuple[Provider, str | None]:
    loaded = load_object(f"{path}:{function}", "provider")
    if not callable(loaded.value):
        raise BridgeError("provider_invalid", f"{loaded.target} is not a function", "Define call_api in it.")
    try:
        inspect.signature(loaded.value).bind("prompt", {}, {})
    except TypeError as error:
        raise BridgeError(
            "provider_invalid",
            f"{loaded.target} cannot be called: {error}",
            "Write def call_api(prompt, options, context).",
        ) from error

    def call(prompt: Any, values: Mapping[str, Any]) -> Reply:
        text = _text(prompt)
        found = loaded.value(text, {"id": name, "config": config}, {"vars": dict(values), "prompt": {"raw": text}})
        if inspect.isawaitable(found):
            found = asyncio.run(_awaited(found))
        if not isinstance(found, Mapping):
            raise TypeError(f"{function} returned {safe_repr(found, 80)}, not a mapping with output")
        if found.get("error"):
            raise RuntimeError(f"{function} returned the error {cut(str(found['error']), 300)}")
        if "output" not in found:
            raise TypeError(f"{function} returned no output (it has {', '.join(map(str, found)) or 'nothing'})")
        tokens = found.get("tokenUsage") or {}
        usage = {"prompt_tokens": tokens.get("prompt"), "completion_tokens": tokens.get("completion")}
        return Reply(
            shown(found["output"]), {**usage, "total_tokens": tokens.get("total"), "cost_usd": found.get("cost")}
        )

    return call, loaded.file


async def _awaited(found: Any) -> Any:
    return await found


def _openai(model: str, config: dict[str, Any], place: str) -> Provider:
    url = str(config.get("apiBaseUrl") or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL).rstrip("/")
    if config.get("apiHost"):
        url = f"https://{config['apiHost']}/v1"
    if not re.match(r"https?://[^/]", url):
        raise BridgeError(
            "provider_invalid", f"{place}: apiBaseUrl is {url!r}", "Write an address such as https://HOST/v1."
        )
    variable = str(config.get("apiKeyEnvar") or DEFAULT_KEY)
    key = config.get("apiKey") or os.environ.get(variable)
    is_local = re.match(r"https?://(127\.0\.0\.1|localhost|\[::1\])[:/]", f"{url}/")
    if not key and not is_local:
        raise BridgeError("key_missing", f"{place}: ${variable} is not set", "Set it to the key of the provider.")
    headers = {
        "Content-Type": "application/json",
        **{str(name): str(value) for name, value in (config.get("headers") or {}).items()},
    }
    if key:
        headers["Authorization"] = f"Bearer {key}"
    fixed = {name: config[name] for name in PARAMETERS if name in config}
    fixed.update(config.get("passthrough") or {})
    price = _price(config, place)

    def call(prompt: Any, _: Mapping[str, Any]) -> Reply:
        messages = _messages(prompt)
        body = json.dumps({"model": model, "messages": messages, **fixed}).encode()
        answer = _post(f"{url}/chat/completions", body, headers)
        try:
            output = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            raise RuntimeError(f"the provider answered without a message: {cut(safe_repr(answer), 300)}") from None
        usage = dict(answer["usage"]) if isinstance(answer.get("usage"), Mapping) else {}
        if price is not None and usage:
            tokens = (usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0)
            usage["cost_usd"] = sum(count * each for count, each in zip(tokens, price))
        return Reply(output if isinstance(output, str) else shown(output), usage)

    return call


def _price(config: Mapping[str, Any], place: str) -> tuple[float, float] | None:
    """Return the prices of a prompt token and of a completion token, if the config tells them."""
    both = [config.get(name, config.get("cost")) for name in ("inputCost", "outputCost")]
    if None in both:
        return None
    if not all(isinstance(each, (int, float)) and each >= 0 for each in both):
        raise BridgeError(
            "provider_invalid", f"{place}: cost is {both[0]!r}, {both[1]!r}", "Write US dollars per token."
        )
    return float(both[0] or 0), float(both[1] or 0)


def _messages(prompt: Any) -> Any:
    if not isinstance(prompt, str):
        return prompt
    try:
        found = json.loads(prompt)
    except ValueError:
        found = None
    is_chat = isinstance(found, list) and found and all(isinstance(item, dict) and "role" in item for item in found)
    return found if is_chat else [{"role": "user", "content": prompt}]


def _post(url: str, body: bytes, headers: Mapping[str, str]) -> Any:
    """Send a request. It is sent again only if the server refused it, or was not reached: other answers may be paid."""
    for attempt in range(1, ATTEMPTS + 1):
        request = urllib.request.Request(url, body, dict(headers), method="POST")  # noqa: S310 - checked when loaded.
        pause = min(MAX_PAUSE_SECONDS, 2.0**attempt)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply:  # noqa: S310
                return json.load(reply)
        except urllib.error.HTTPError as error:
            said = cut(" ".join(error.read(2000).decode("utf-8", "replace").split()), 300)
            if attempt == ATTEMPTS or error.code not in (429, 502, 503, 529):
                raise RuntimeError(f"the provider answered HTTP {error.code}: {said}") from None
            after = error.headers.get("Retry-After", "")
            pause = min(MAX_PAUSE_SECONDS, float(after)) if after.isdigit() else pause
        except urllib.error.URLError as error:
            if attempt == ATTEMPTS or not isinstance(error.reason, (ConnectionRefusedError, socket.gaierror)):
                raise RuntimeError(f"the provider cannot be reached: {error.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RuntimeError(f"the provider's answer cannot be read: {type(error).__name__}: {error}") from None
        time.sleep(pause)
    raise RuntimeError("the provider cannot be reached")
