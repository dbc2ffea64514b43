"""The two transports: each does what a conversation asks for, one with threads that wait and one with `await`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from synth_optimizers.client.effects import (
    Effect,
    Emit,
    Flow,
    Open,
    Pause,
    Read,
    Reply,
    Request,
    Send,
    TransportFailure,
)
from synth_optimizers.client.options import Options, load_httpx

if TYPE_CHECKING:
    import httpx

__all__ = ["AsyncTransport", "Transport"]

T = TypeVar("T")
NEVER_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError")
"""Failures of httpx before the first byte of a request."""


class Transport:
    """Waits for what it does."""

    def __init__(self, options: Options) -> None:
        self._httpx = load_httpx()
        self._options = options
        self._client: httpx.Client = self._httpx.Client(**options.httpx())

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def run(self, flow: Flow[T]) -> T:
        """Have a conversation and return its result."""
        items = self.iterate(flow)
        while True:
            try:
                next(items)
            except StopIteration as end:
                result: T = end.value
                return result

    def iterate(self, flow: Flow[T]) -> Generator[Any, None, T]:
        """Have a conversation and yield what it emits."""
        stream = Stream(self)
        answer: Any = None
        failure: TransportFailure | None = None
        try:
            while True:
                effect = flow.send(answer) if failure is None else flow.throw(failure)
                answer, failure = None, None
                if isinstance(effect, Emit):
                    yield effect.item
                    continue
                try:
                    answer = self._do(effect, stream)
                except self._httpx.RequestError as problem:
                    failure = _failure(problem)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            flow.close()
            stream.close()

    def _do(self, effect: Effect, stream: Stream) -> object:
        match effect:
            case Send(request):
                return _reply(self._client.send(self._built(request)))
            case Open(request):
                return stream.open(self._built(request))
            case Read():
                return stream.read()
            case Pause(seconds):
                time.sleep(seconds)
        return None

    def _built(self, request: Request) -> httpx.Request:
        return _built(self._client, self._options, request)


class Stream:
    """The body that a conversation reads piece by piece; one at a time."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def open(self, request: httpx.Request) -> Reply:
        """Send a request and return the head of its answer; a body that is no 200 is read at once."""
        self.close()
        self._response = self._transport._client.send(request, stream=True)
        if self._response.status_code != 200:
            self._response.read()
            reply = _reply(self._response)
            self.close()
            return reply
        self._chunks = self._response.iter_bytes()
        return Reply(200, _headers(self._response))

    def read(self) -> bytes:
        """Return the next bytes; none at the end."""
        return next((chunk for chunk in self._chunks if chunk), b"")

    def close(self) -> None:
        """Let the body go."""
        if self._response is not None:
            self._response.close()
        self._response, self._chunks = None, iter(())


class AsyncTransport:
    """Does not hold up the event loop."""

    def __init__(self, options: Options) -> None:
        self._httpx = load_httpx()
        self._options = options
        self._client: httpx.AsyncClient = self._httpx.AsyncClient(**options.httpx())

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def run(self, flow: Flow[T]) -> T:
        """Have a conversation and return its result."""
        result: list[T] = []

        def kept() -> Flow[None]:
            result.append((yield from flow))

        async for _ in self.iterate(kept()):
            pass
        return result[0]

    async def iterate(self, flow: Flow[None]) -> AsyncGenerator[Any]:
        """Have a conversation and yield what it emits."""
        stream = AsyncStream(self)
        answer: Any = None
        failure: TransportFailure | None = None
        try:
            while True:
                try:
                    effect = flow.send(answer) if failure is None else flow.throw(failure)
                except StopIteration:
                    return
                answer, failure = None, None
                if isinstance(effect, Emit):
                    yield effect.item
                    continue
                try:
                    answer = await self._do(effect, stream)
                except self._httpx.RequestError as problem:
                    failure = _failure(problem)
        finally:
            flow.close()
            await stream.close()

    async def _do(self, effect: Effect, stream: AsyncStream) -> object:
        match effect:
            case Send(request):
                return _reply(await self._client.send(self._built(request)))
            case Open(request):
                return await stream.open(self._built(request))
            case Read():
                return await stream.read()
            case Pause(seconds):
                await asyncio.sleep(seconds)
        return None

    def _built(self, request: Request) -> httpx.Request:
        return _built(self._client, self._options, request)


class AsyncStream:
    """The body that a conversation reads piece by piece; one at a time."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def open(self, request: httpx.Request) -> Reply:
        """Send a request and return the head of its answer; a body that is no 200 is read at once."""
        await self.close()
        self._response = await self._transport._client.send(request, stream=True)
        if self._response.status_code != 200:
            await self._response.aread()
            reply = _reply(self._response)
            await self.close()
            return reply
        self._chunks = self._response.aiter_bytes()
        return Reply(200, _headers(self._response))

    async def read(self) -> bytes:
        """Return the next bytes; none at the end."""
        if self._chunks is not None:
            async for chunk in self._chunks:
                if chunk:
                    return chunk
        return b""

    async def close(self) -> None:
        """Let the body go."""
        if self._response is not None:
            with suppress(RuntimeError):
                # The event loop may be closed by now.
                await self._response.aclose()
        self._response, self._chunks = None, None


def _built(client: httpx.Client | httpx.AsyncClient, options: Options, request: Request) -> httpx.Request:
    wait = request.read_timeout
    limits = {"connect": options.connect_timeout, "read": wait, "write": options.timeout, "pool": options.timeout}
    return client.build_request(
        request.method,
        f"{options.base_url}{request.path}",
        params=list(request.params) or None,
        headers=dict(request.headers),
        content=request.content,
        extensions={"timeout": limits},
    )


def _reply(response: httpx.Response) -> Reply:
    return Reply(response.status_code, _headers(response), response.content)


def _headers(response: httpx.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _failure(problem: Exception) -> TransportFailure:
    kind = type(problem).__name__
    told = str(problem) or kind
    return TransportFailure(told, is_sent=kind not in NEVER_SENT, is_timeout=kind.endswith("Timeout"))
