"""The Redis client of the broker, its errors as QueueError, and calls of scripts by their digest."""

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
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from adsum.errors import os_reason
from dispatcher.broker.contract.queue import QueueError
from dispatcher.broker.urls import REDIS_SCHEMES, without_credentials

ANSWER_TIMEOUT: Final = 5.0
"""Seconds after which a broker that does not answer counts as away."""
MAX_CONCURRENT_COMMANDS: Final = 32
"""Commands in flight at once; connections for subscriptions come on top."""
UNBOUNDED: Final = 2**31


class _Client(Redis):
    """Limits time and connections by itself.

    Time: redis-py's `socket_timeout` uses `asyncio.wait_for`, which can swallow a cancellation on Python 3.11
    (https://github.com/python/cpython/issues/86296). A dispatcher that is cancelled would then run on.
    Connections: redis-py's pool raises an error when all are in use. Here a command waits for its turn instead.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turns = asyncio.Semaphore(MAX_CONCURRENT_COMMANDS)
        self.answer_timeout = ANSWER_TIMEOUT

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            async with self._turns, asyncio.timeout(self.answer_timeout):
                return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except ReadOnlyError:
            # After a failover the server that we are connected to may be a replica, and the address may lead to the new
            # primary. A kept connection would fail for ever; a new one resolves the address again.
            await self.connection_pool.disconnect(inuse_connections=False)
            raise
        except TimeoutError as error:
            raise RedisTimeoutError(f"no answer within {self.answer_timeout:g} s") from error


class _Packing:
    """Packs commands in C: scripts have thousands of arguments, and redis-py's Python code takes five times as long."""

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
    """A client that connects with its first command. Raises ValueError for a URL of another scheme.

    `answer_timeout`: seconds after which a broker that does not answer counts as away.
    """
    if urlsplit(url).scheme not in REDIS_SCHEMES:
        raise ValueError(
            f"{without_credentials(url)!r} is no Redis URL; expected redis://host:port/0, rediss:// or unix:///path"
        )
    client: Any = _Client.from_url(
        url,
        max_connections=UNBOUNDED,
        socket_timeout=None,
        socket_connect_timeout=ANSWER_TIMEOUT,
        retry=Retry(NoBackoff(), 0),  # the caller decides what may be repeated
    )
    client.answer_timeout = answer_timeout
    pool = client.connection_pool
    pool.connection_class = _PACKING.get(pool.connection_class, pool.connection_class)
    connected: Redis = client
    return connected


_NOT_SENT: Final = "start a Redis or a Valkey there, or name another broker"
_MAY_BE_DONE: Final = "the operation may have been done, asking again is safe"


@contextmanager
def as_queue_errors(address: str) -> Iterator[None]:
    """Raises the client's errors as QueueError, which says whether the operation may have been done."""
    try:
        yield
    except AuthenticationError as error:  # redis-py's subclass of ConnectionError, but the server did answer
        raise QueueError(f"the broker at {address} refuses, nothing was changed: {error}") from error
    except (RedisConnectionError, RedisTimeoutError, OSError) as error:
        reason = os_reason(error)
        advice = _NOT_SENT if reason == os.strerror(errno.ECONNREFUSED) else _MAY_BE_DONE
        raise QueueError(f"the broker at {address} does not answer ({reason}); {advice}") from error
    except RedisError as error:
        raise QueueError(f"the broker at {address} refuses, nothing was changed: {error}") from error


async def server_time_ms(client: Redis, address: str) -> int:
    """The clock of the Redis server, Unix milliseconds. Raises QueueError."""
    with as_queue_errors(address):
        seconds, micros = await client.time()
    return int(seconds) * 1000 + int(micros) // 1000


class Script:
    """A Lua script, called by its digest; sent as text if the server does not know it.

    Redis keeps scripts in a cache that a restart or a failover empties:
    https://redis.io/docs/latest/develop/programmability/eval-intro/#cache-volatility
    """

    def __init__(self, client: Redis, text: str, address: str) -> None:
        self._client = client
        self._script = client.register_script(text)
        self._address = address

    async def __call__(self, keys: Sequence[str], arguments: Sequence[str | bytes | int | float]) -> Any:
        """Run the script by its digest, and load it first if Redis has lost it; raises QueueError."""
        with as_queue_errors(self._address):
            try:
                return await self._client.evalsha(self._script.sha, len(keys), *keys, *arguments)
            except NoScriptError:
                return await self._script(keys, arguments)
