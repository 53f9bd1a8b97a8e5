"""Asks prefill workers, each over kept connections: with time-outs, and again where it may help."""

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from adsum.errors import os_reason
from adsum.http1.connection import ClientConnection, HostPort
from adsum.http1.pool import ConnectionPool, NotConnectedError
from adsum.http1.response import HttpResponse, ResponseError, ResponseReader
from registry.disaggregation.allowed_workers import AllowedWorkers

MAX_ANSWER: Final = 16 * 1024 * 1024
"""Bytes of a prefill worker's answer, most of them the numbers of blocks."""
_CONNECT_TIMEOUT: Final = 2.0
"""Seconds. Both are in one cluster; the decode worker waits behind it."""
_MOST_POOLS: Final = 256
"""Prefill workers to which connections are kept."""
_TRANSIENT: Final = (502, 503, 504)
"""Asking again may help, as llm-d's sidecar has it; 500 is a fault of the worker."""
_NOT_THE_CLIENTS: Final = (401, 403, 404, 405, 408, 429)
"""Another worker may answer otherwise where these came; the other 4xx are the client's."""


class PrefillError(Exception):
    """No prefill worker computed the prompt; `reason` is a word for metrics, the text says why."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """Times are in seconds. `timeout`: until the whole answer. `retries`: after a transient failure."""

    timeout: float = 60.0
    retries: int = 0
    backoff: float = 0.2


class PrefillLeg:
    """One request to a prefill worker. `answered`: whether a byte of its answer has come, so that blocks may be waiting."""

    def __init__(self) -> None:
        self.abandoned = False
        """Whether its client has gone: then it is not asked again."""
        self._connection: ClientConnection | None = None

    @property
    def answered(self) -> bool:
        return self._connection is not None and self._connection.received_any

    def over(self, connection: ClientConnection | None) -> None:
        """The connection that it goes over from now on; None: none, between two attempts."""
        if connection is not None:
            connection.received_any = False  # that was the answer to another request
        self._connection = connection


class PrefillWorkers:
    """Must be closed. `tls` None: they speak plain text."""

    def __init__(
        self, allowed: AllowedWorkers, limits: PrefillLimits, tls: ssl.SSLContext | None = None
    ) -> None:
        self._allowed = allowed
        self._limits = limits
        self._tls = tls
        # bounded: _MOST_POOLS, and those in use
        self._pools: OrderedDict[HostPort, _KeptPool] = OrderedDict()

    def check(self, target: HostPort) -> None:
        """Raises PrefillError if this address may not be asked."""
        if not self._allowed.allows(target):
            raise PrefillError("refused", "no prefill worker that this sidecar knows has this address")

    async def ask(
        self, target: HostPort, head: bytes, body: bytes, leg: PrefillLeg, at_least: float = 0.0
    ) -> HttpResponse:
        """The answer, with status 2xx or a 4xx that is the client's. Raises PrefillError. `at_least`: seconds for it."""
        attempts = 0
        while True:
            attempts += 1
            try:
                answer = await self._ask_once(target, head, body, leg, max(self._limits.timeout, at_least))
            except PrefillError as error:
                if error.reason != "unreachable" or leg.abandoned or attempts > self._limits.retries:
                    raise _after(attempts, error) from error
            else:
                if 200 <= answer.status < 300:
                    return answer
                if 400 <= answer.status < 500 and answer.status not in _NOT_THE_CLIENTS:
                    return answer
                if answer.status not in _TRANSIENT or leg.abandoned or attempts > self._limits.retries:
                    raise _after(attempts, PrefillError(_fault(answer.status), f"HTTP {answer.status}"))
            leg.over(None)
            await asyncio.sleep(self._limits.backoff)

    async def aclose(self) -> None:
        for kept in self._pools.values():
            await kept.pool.aclose()
        self._pools.clear()

    async def _ask_once(
        self, target: HostPort, head: bytes, body: bytes, leg: PrefillLeg, timeout: float
    ) -> HttpResponse:
        reader = partial(ResponseReader, MAX_ANSWER, encoded=True, strict=True)
        limit = _Limit(timeout)
        try:
            async with limit.timeout:
                with self._pool(target) as pool, self._allowed.while_there(target, limit.lose):
                    return await pool.send(head, body, reader, leg.over)
        except (OSError, ResponseError) as error:
            raise limit.problem(error, answered=leg.answered) from error

    @contextmanager
    def _pool(self, target: HostPort) -> Iterator[ConnectionPool]:
        kept = self._pools.get(target)
        if kept is None:
            made = ConnectionPool(target, tls=self._tls, connect_timeout=_CONNECT_TIMEOUT)
            kept = self._pools[target] = _KeptPool(made)
        self._pools.move_to_end(target)
        kept.users += 1
        try:
            yield kept.pool
        finally:
            kept.users -= 1
            self._evict()

    def _evict(self) -> None:
        """Forget the worker that was not asked for longest; its idle connections expire by themselves."""
        while len(self._pools) > _MOST_POOLS:
            oldest = next((target for target, kept in self._pools.items() if not kept.users), None)
            if oldest is None:
                return
            del self._pools[oldest]


class _Limit:
    """The time for an answer, which ends at once if discovery loses the worker."""

    def __init__(self, seconds: float) -> None:
        self.timeout = asyncio.timeout(seconds)
        self._seconds = seconds
        self._lost = False

    def lose(self) -> None:
        if not self.timeout.expired():
            self._lost = True
            self.timeout.reschedule(asyncio.get_running_loop().time())

    def problem(self, error: OSError | ResponseError, *, answered: bool) -> PrefillError:
        if isinstance(error, NotConnectedError):
            return PrefillError(
                "unreachable", f"no connection: {os_reason(error)}" if error.__cause__ else str(error)
            )
        if isinstance(error, ResponseError):
            return PrefillError("answer" if answered else "unreachable", str(error))
        if isinstance(error, TimeoutError) and not error.errno:
            if self._lost:
                return PrefillError("lost", "discovery lost it while it computed the prompt")
            return PrefillError("timeout", f"no answer within {self._seconds:g} s")
        return PrefillError("unreachable", f"the connection broke: {os_reason(error)}")


@dataclass(slots=True)
class _KeptPool:
    pool: ConnectionPool
    users: int = 0


def _fault(status: int) -> str:
    # 429: its queue is full. Nothing is wrong with it, so no picker shall eject it for that.
    return "busy" if status == 429 else "status"


def _after(attempts: int, error: PrefillError) -> PrefillError:
    return error if attempts == 1 else PrefillError(error.reason, f"{error}, after {attempts} attempts")
