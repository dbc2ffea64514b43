"""The settings of a client: the address, the token, the waits."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from synth_optimizers.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["ADDRESS", "Options", "load_httpx"]

ADDRESS = "http://127.0.0.1:8879"
INSTALL = 'pip install "synth-optimizers[client]"'


@dataclass(frozen=True, slots=True)
class Options:
    """How a client talks to its service."""

    base_url: str
    token: str | None = field(repr=False)
    timeout: float
    connect_timeout: float
    retries: int

    @classmethod
    def of(cls, base_url: str, *, token: str | None, timeout: float, connect_timeout: float, retries: int) -> Options:
        """Check the settings that only the client knows."""
        try:
            parts = urlsplit(base_url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_address = False
        if not is_address:
            raise _refused(f"{base_url!r} is not the address of a service", f"Write it as {ADDRESS!r}.")
        if parts.username is not None or parts.password is not None:
            raise _refused("the address of a service holds no password", "Name the token with `token`.")
        if parts.query or parts.fragment:
            raise _refused(f"{base_url!r} has more than an address", f"Write it as {ADDRESS!r}.")
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            # The token is not shown, not even a bad one.
            raise _refused("the token is empty or has characters that no token has", "Name the text of the token.")
        return cls(base_url.rstrip("/"), token, timeout, connect_timeout, retries)

    def headers(self) -> dict[str, str]:
        """Return what every request carries."""
        from synth_optimizers import __version__

        known = {"user-agent": f"synth-optimizers-client/{__version__}"}
        return known if self.token is None else {**known, "authorization": f"Bearer {self.token}"}

    def httpx(self) -> dict[str, Any]:
        """Return the settings of the transport. It follows nobody elsewhere and takes no proxy from the environment."""
        return {"headers": self.headers(), "follow_redirects": False, "trust_env": False}


def load_httpx() -> ModuleType:
    """Return the package that carries the requests; the extra `client` brings it."""
    try:
        return importlib.import_module("httpx")
    except ImportError as problem:
        error = _refused("talking to a service needs the package httpx", INSTALL)
        error.detail = str(problem)
        raise error from problem


def _refused(message: str, hint: str) -> ConfigError:
    error = ConfigError(f"{ConfigError.error_code}: {message}")
    error.hint = hint
    return error
