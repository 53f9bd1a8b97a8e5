"""Calls to etcd: at the member that answered last, at the next one when it does not, and authenticated anew when needed."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from adsum.tasks import BackgroundTasks
from discovery.errors import ForbiddenError, InputFileError
from discovery.etcd.connection import (
    AUTHENTICATE,
    WATCH,
    Answer,
    EtcdConnection,
    EtcdMethod,
    EtcdStream,
    Metadata,
    Request,
    read_small_file,
)
from discovery.etcd.errors import EtcdTokenError, EtcdUnavailableError, EtcdWithoutUsersError
from discovery.etcd.messages.etcd_pb2 import (
    AuthenticateRequest,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)
from discovery.etcd.url import EtcdSettings

_REQUIRE_LEADER: Final = ("hasleader", "true")
"""A member that is cut off from the others ends our stream instead of keeping it silent (clientv3.WithRequireLeader)."""


@dataclass(frozen=True, slots=True)
class EtcdTimings:
    """In seconds. `call`: for one member's answer. `probe`: a watch that was silent so long asks its member for a sign of life.

    `backoff`: the first and the longest delay between attempts, doubled each time. `settled`: a watch that lived so long was
    in order, so that the delays begin anew. `recovery`: after an outage, how long workers that renewed their leases in vain
    have to register again: twice their longest delay.
    """

    call: float = 3.0
    probe: float = 2.0
    backoff: tuple[float, float] = (0.1, 3.0)
    settled: float = 10.0
    recovery: float = 6.0

    def delay(self, failures: int) -> float:
        """Before the next attempt after `failures` in a row, from 1: from half of the doubled delay to all of it, so that a
        restarted etcd does not get all its clients at one moment."""
        first, longest = self.backoff
        return random.uniform(0.5, 1.0) * min(longest, first * 2.0 ** min(failures - 1, 16))


class EtcdClient:
    """Bound to one event loop. Connects when it is first used."""

    def __init__(self, settings: EtcdSettings, timings: EtcdTimings) -> None:
        self.settings = settings
        self.timings = timings
        self._member = 0
        self._connection: EtcdConnection | None = None
        self._token: str | None = None
        self._authenticating = asyncio.Lock()
        self._retired: set[EtcdConnection] = set()
        self._closing = BackgroundTasks()

    async def call(self, method: EtcdMethod[Request, Answer], request: Request) -> Answer:
        """Each member is asked once. Raises one of `discovery.etcd.errors`, ForbiddenError, InputFileError."""
        tried = 0
        while True:
            connection = self._connect()
            try:
                with connection.in_use():
                    return await self.ask_at(connection, method, request)
            except EtcdUnavailableError as error:
                if type(error) is not EtcdUnavailableError:
                    raise
                self._retire(connection)
                tried += 1
                if tried >= len(self.settings.members):
                    raise

    @asynccontextmanager
    async def watch(
        self, request: WatchCreateRequest
    ) -> AsyncIterator[EtcdStream[WatchRequest, WatchResponse]]:
        """A watch whose first answer says whether the watch was created. An error of etcd's in
        the block has its effect: the next watch goes to another member, or with another token."""
        connection = self._connect()
        metadata: Metadata = ()
        with connection.in_use():
            try:
                metadata = await self._metadata(connection)
                stream = connection.stream(WATCH, (*metadata, _REQUIRE_LEADER))
                try:
                    await stream.send(WatchRequest(create_request=request), self.timings.call)
                    yield stream
                finally:
                    await stream.aclose()
            except EtcdTokenError as error:
                self._forget(metadata, error)
                raise
            except EtcdUnavailableError as error:
                if type(error) is EtcdUnavailableError:
                    self._retire(connection)
                raise

    async def aclose(self) -> None:
        await self._closing.aclose()
        for connection in (*self._retired, self._connection):
            if connection is not None:
                await connection.abort()

    async def ask_at(
        self, connection: EtcdConnection, method: EtcdMethod[Request, Answer], request: Request
    ) -> Answer:
        """As `call`, at this member alone."""
        metadata = await self._metadata(connection)
        try:
            return await connection.ask(method, request, metadata, self.timings.call)
        except EtcdTokenError as error:
            self._forget(metadata, error)
        metadata = await self._metadata(connection)
        return await connection.ask(method, request, metadata, self.timings.call)

    async def _metadata(self, connection: EtcdConnection) -> Metadata:
        """With the token that proves who we are, if the settings name a user."""
        if self.settings.user is None:
            return ()
        async with self._authenticating:
            if self._token is None:
                self._token = await self._authenticate(connection, self.settings.user)
        return (("token", self._token),) if self._token else ()

    async def _authenticate(self, connection: EtcdConnection, user: str) -> str:
        """The token; "" if the cluster has no users. It is never logged."""
        request = AuthenticateRequest(name=user, password=self._password())
        try:
            answer = await connection.ask(AUTHENTICATE, request, (), self.timings.call)
        except EtcdWithoutUsersError:
            return ""
        return answer.token

    def _password(self) -> str:
        if self.settings.password_file is None:
            return self.settings.password or ""
        try:
            return read_small_file(self.settings.password_file).decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputFileError(f"{self.settings.password_file} is not UTF-8 text") from error

    def _forget(self, metadata: Metadata, refusal: EtcdTokenError) -> None:
        """The token in `metadata` is refused. ForbiddenError if we have no user to ask for another."""
        if self.settings.user is None:
            raise ForbiddenError(
                f"{refusal}; this cluster wants a user: ?user=NAME in the URL, and $ETCDCTL_PASSWORD"
            ) from refusal
        if self._token == dict(metadata).get("token", ""):
            self._token = None

    def _connect(self) -> EtcdConnection:
        if self._connection is None:
            member = self.settings.members[self._member]
            self._connection = EtcdConnection(member, self.settings.tls)
        return self._connection

    def _retire(self, connection: EtcdConnection) -> None:
        """The next call goes to the next member; certificates are read again. Calls that use this one may go on."""
        if self._connection is connection:
            self._member = (self._member + 1) % len(self.settings.members)
            self._connection = None
            self._retired.add(connection)
            self._closing.start(self._close(connection), f"close the connection to {connection.member}")

    async def _close(self, connection: EtcdConnection) -> None:
        await connection.aclose()
        self._retired.discard(connection)
