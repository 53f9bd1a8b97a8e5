"""The broker's client: how scripts are called, and what its errors mean to ours."""

import asyncio
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import hiredis
from redis.asyncio import Connection, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoScriptError, ReadOnlyError, RedisError
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import TimeoutError as LateError

from dispatcher.broker.queue import QueueError
from runtime.os_reason import os_reason

ANSWER_TIMEOUT: Final = 5.0
"""Seconds after which a broker that says nothing counts as away."""
AT_ONCE: Final = 32
"""Commands on their way at once; subscriptions come on top."""
UNBOUNDED: Final = 2**31
SCHEMES: Final = ("redis", "rediss", "unix")


class _Client(Redis):
    """Bounded in time here: the client's own bound on what it sends swallows cancellations on Python 3.11.

    Bounded in connections too: who finds all in use waits, instead of being told that there are too many.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self.answer_timeout = ANSWER_TIMEOUT

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            async with self._turns, asyncio.timeout(self.answer_timeout):
                return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except ReadOnlyError:
            # the address may stand for another server by now: whoever keeps these connections never reaches it
            await self.connection_pool.disconnect(inuse_connections=False)
            raise
        except TimeoutError as error:
            raise LateError(f"nothing came within {self.answer_timeout:g} s") from error


class _Packing:
    """Scripts have thousands of arguments: packed in C, they cost a fifth."""

    def pack_command(self, *args: Any) -> list[bytes]:
        if args[0] == "EVALSHA":
            return [hiredis.pack_command(args)]
        packed: list[bytes] = super().pack_command(*args)  # type: ignore[misc]
        return packed


class _Tcp(_Packing, Connection):
    pass


class _Tls(_Packing, SSLConnection):
    pass


class _Unix(_Packing, UnixDomainSocketConnection):
    pass


_PACKING: Final = {Connection: _Tcp, SSLConnection: _Tls, UnixDomainSocketConnection: _Unix}


def connect(url: str, *, answer_timeout: float = ANSWER_TIMEOUT) -> Redis:
    """A client with a pool; nothing is connected before the first command. Raises ValueError for another URL.

    `answers_within`: seconds after which a broker that says nothing counts as away.
    """
    if urlsplit(url).scheme not in SCHEMES:
        raise ValueError(
            f"{where(url)!r} is no Redis URL; expected redis://host:port/0, rediss:// or unix:///path"
        )
    client: Any = _Client.from_url(
        url,
        max_connections=UNBOUNDED,
        socket_timeout=None,
        socket_connect_timeout=ANSWER_TIMEOUT,
        retry=Retry(NoBackoff(), 0),  # whoever asks decides: most questions may be asked again
    )
    client.answer_timeout = answer_timeout
    pool = client.connection_pool
    pool.connection_class = _PACKING.get(pool.connection_class, pool.connection_class)
    connected: Redis = client
    return connected


_NOTHING_ASKED: Final = "start a Redis or a Valkey there, or name another broker"
_MAYBE_DONE: Final = "what was asked may have been done, asking again is safe"


def where(url: str) -> str:
    """The URL without user and password, for people."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@contextmanager
def as_queue_errors(place: str) -> Iterator[None]:
    """The client's errors as QueueError that says what it means for whoever asked."""
    try:
        yield
    except AuthenticationError as error:  # a lost connection to the client, but not to us
        raise QueueError(f"the broker at {place} refuses, nothing was changed: {error}") from error
    except (LostError, LateError, OSError) as error:
        reason = os_reason(error)
        follows = _NOTHING_ASKED if reason == os.strerror(errno.ECONNREFUSED) else _MAYBE_DONE
        raise QueueError(f"the broker at {place} does not answer ({reason}); {follows}") from error
    except RedisError as error:
        raise QueueError(f"the broker at {place} refuses, nothing was changed: {error}") from error


async def server_time_ms(client: Redis, place: str) -> int:
    """The clock of the Redis server, in milliseconds since the epoch; raises QueueError."""
    with as_queue_errors(place):
        seconds, micros = await client.time()
    return int(seconds) * 1000 + int(micros) // 1000


class Script:
    """A script, known to the broker by its digest, sent again where the broker has forgotten it."""

    def __init__(self, client: Redis, text: str, place: str) -> None:
        self._client = client
        self._script = client.register_script(text)
        self._place = place

    async def __call__(self, keys: Sequence[str], arguments: Sequence[str | bytes | int | float]) -> Any:
        """Raises QueueError."""
        with as_queue_errors(self._place):
            try:
                return await self._client.evalsha(self._script.sha, len(keys), *keys, *arguments)
            except NoScriptError:
                return await self._script(keys, arguments)
