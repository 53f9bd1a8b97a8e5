"""Wraps a transport and counts what passed through it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from discovery.kubernetes import ClusterTransport, Response


class RecordingTransport:
    """`expired`: how often a version was too old, as a status or as an event; `ended`: how many watches ended well.
    While `may_ask` is not set, requests wait.
    """

    def __init__(self, transport: ClusterTransport) -> None:
        self._transport = transport
        self.asked: list[Mapping[str, str]] = []
        self.expired = 0
        self.ended = 0
        self.may_ask = asyncio.Event()
        self.may_ask.set()

    @asynccontextmanager
    async def open(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Response]:
        self.asked.append(params)
        await self.may_ask.wait()
        async with self._transport.open(path, params) as response:
            yield replace(response, chunks=self._chunks(response, watch="watch" in params))

    async def can_connect(self) -> bool:
        return await self._transport.can_connect()

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _chunks(self, response: Response, *, watch: bool) -> AsyncIterator[bytes]:
        async for chunk in response.chunks:
            self.expired += b'"reason":"Expired"' in chunk
            yield chunk
        self.ended += watch
