"""A transport to the fake without sockets: deterministic, for virtual time."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager

from multidict import CIMultiDict

from discovery.kubernetes import Response, TransportError
from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.calls import Call, CutError


class MemoryTransport:
    """`discovery.kubernetes.ApiTransport` over a `FakeApi`. `split`: how a body's bytes reach the reader."""

    def __init__(
        self,
        api: FakeApi,
        *,
        header_deadline: float = 15.0,
        split: Callable[[bytes], Iterable[bytes]] = lambda chunk: (chunk,),
    ) -> None:
        self.down: str | None = None
        """Why no connection can be made; None: one can."""
        self.attempts: list[float] = []
        """When requests were sent, on the loop's clock, with those that could not connect."""
        self._api = api
        self._deadline = header_deadline
        self._split = split

    @asynccontextmanager
    async def open(self, path: str, params: Mapping[str, str]) -> AsyncGenerator[Response]:
        now = asyncio.get_running_loop().time()
        self.attempts.append(now)
        if self.down is not None:
            raise TransportError(self.down, connect_failed=True)
        call = Call("GET", path, dict(params), {"Accept-Encoding": "identity"}, at=now)
        try:
            async with asyncio.timeout(self._deadline):
                answer = await self._api.answer(call)
        except (CutError, TimeoutError) as error:
            raise TransportError(f"no answer ({type(error).__name__})") from error
        async with aclosing(answer.body) as body:
            yield Response(answer.status, CIMultiDict(answer.headers), self._chunks(body))

    async def can_connect(self) -> bool:
        return self.down is None

    async def aclose(self) -> None:
        """Nothing to close."""

    async def _chunks(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for chunk in body:
                for part in self._split(chunk):
                    yield part
        except CutError as error:
            raise TransportError("the answer broke off") from error
