"""Faults that a simulated worker has on request: its page of metrics comes all the same."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from examples.simulator.kv_events import CacheEvents

PATH = "/fault"
_SERVED = "/v1/"


class Fault(StrEnum):
    """ERROR: 500 for every request. UNAVAILABLE: 503. STALL: accepted and never answered. FLAP: ERROR every other second.

    ALTERNATE: ERROR every other request. POISON: ERROR for a body that has the word poison in it.
    """

    NONE = "none"
    ERROR = "error"
    STALL = "stall"
    FLAP = "flap"
    UNAVAILABLE = "unavailable"
    ALTERNATE = "alternate"
    POISON = "poison"


class Faults:
    """`POST /fault` with a name as its body chooses one; requests that stall go on when it is over.

    `kv_events`: has faults of its own (`KvFault`).
    """

    def __init__(self, kv_events: "CacheEvents | None" = None) -> None:
        self._kv_events = kv_events
        self._fault = Fault.NONE
        self._changed = asyncio.Event()
        self._asked = 0

    async def choose(self, request: web.Request) -> web.Response:
        """Answers 400 for a name that is none."""
        name, known = await request.text(), list[str](Fault)
        if self._kv_events is not None:
            from examples.simulator.kv_events import KvFault

            known += list(KvFault)
            if name in (*KvFault, Fault.NONE):
                await self._kv_events.suffer(None if name == Fault.NONE else KvFault(name))
                if name != Fault.NONE:
                    return web.Response()
        if name not in known:
            return web.Response(status=400, text=f"{name[:60]!r} is no fault; expected {', '.join(known)}")
        self._fault = Fault(name)
        self._changed.set()
        self._changed = asyncio.Event()
        return web.Response()

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not request.path.startswith(_SERVED):
            return await handler(request)
        while self._fault is Fault.STALL:
            await self._changed.wait()
        if self._fault is not Fault.NONE and self._fails(await request.read()):
            status = 503 if self._fault is Fault.UNAVAILABLE else 500
            return web.json_response({"error": {"message": "a fault", "type": "server_error"}}, status=status)
        return await handler(request)

    def _fails(self, body: bytes) -> bool:
        self._asked += 1
        return {
            Fault.FLAP: int(time.monotonic()) % 2 == 1,
            Fault.ALTERNATE: self._asked % 2 == 1,
            Fault.POISON: b"poison" in body,
        }.get(self._fault, True)
