"""Registers a model server that is not ours: follows its health, publishes a file and what its `/v1/models` lists."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import anyio
import anyio.to_thread
from yarl import URL

from discovery.errors import RegistrationError
from discovery.instance import InstanceStatus
from discovery.metadata.aiohttp_answer import connection_problem, read_body
from registry.service import InstanceHandle
from registry.sidecar.model_server import DocumentFile, describe_transport, merged, read_models

log = logging.getLogger(__name__)

_LEAST_PATIENCE: Final = 1.0
_MODELS_LIMIT: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FollowedServer:
    """The server that is followed, and how. Times are in seconds; `models_path` None: it lists no models."""

    server: URL
    health_path: str = "/health"
    models_path: str | None = "/v1/models"
    engine: str | None = None
    interval: float = 1.0
    drain_timeout: float = 30.0

    def url(self, path: str) -> URL:
        return self.server.joinpath(path.lstrip("/"))

    @property
    def patience(self) -> float:
        """Seconds that an answer may take."""
        return max(self.interval, _LEAST_PATIENCE)


class Sidecar:
    """One instance that stands for one followed server."""

    def __init__(
        self,
        followed: FollowedServer,
        handle: InstanceHandle,
        session: aiohttp.ClientSession,
        file: DocumentFile | None = None,
    ) -> None:
        self._followed = followed
        self._handle = handle
        self._session = session
        self._file = file
        self._models: Mapping[str, Any] = {}
        self._told: dict[str, str | None] = {}
        self._published: Mapping[str, Any] | None = None

    async def follow(self) -> None:
        """Until cancelled. The file is read first, so that no reader sees a ready worker without it."""
        await self._read_file()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow_health)
            tasks.start_soon(self._follow_document)

    async def drain(self) -> None:
        """Say DRAINING, wait until the server's health goes or the drain timeout passes, leave."""
        timeout = self._followed.drain_timeout
        log.info("draining: waiting up to %g s for %s to stop", timeout, self._followed.server)
        with suppress(RegistrationError):  # leaving matters more than saying so beforehand
            self._handle.set_ready(InstanceStatus.DRAINING)
        with anyio.move_on_after(timeout) as waiting:
            await self._until_gone()
        if waiting.cancelled_caught:
            log.info("%s still serves after %g s", self._followed.server, timeout)
        await self._handle.drain(0.0)
        log.info("left")

    async def _follow_health(self) -> None:
        while True:
            problem = await self._probe()
            if isinstance(problem, _Silence):  # perhaps only busy: once more
                problem = await self._probe()
            if problem is None and self._handle.instance.status is not InstanceStatus.READY:
                await self._update_models()
                self._publish()
            self._judge(problem)
            await anyio.sleep(self._followed.interval)

    async def _follow_document(self) -> None:
        while True:
            await self._read_file()
            if self._handle.instance.status is InstanceStatus.READY:
                await self._update_models()
            self._publish()
            await anyio.sleep(self._followed.interval)

    async def _until_gone(self) -> None:
        while await self._probe() is None:  # noqa: ASYNC110 -- another process's health has no event to wait for
            await anyio.sleep(self._followed.interval)

    async def _probe(self) -> str | None:
        """None when the server is well, else what is wrong."""
        url = self._followed.url(self._followed.health_path)
        try:
            async with (
                asyncio.timeout(self._followed.patience),
                self._session.get(url, allow_redirects=False) as response,
            ):
                return None if response.ok and response.status < 300 else f"HTTP {response.status}"
        except TimeoutError:
            return _Silence(f"no answer within {self._followed.patience:g} s")
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            return connection_problem(error)

    async def _update_models(self) -> None:
        """Ask again; what cannot be had now stays as it was."""
        if self._followed.models_path is None:
            return
        url = self._followed.url(self._followed.models_path)
        try:
            async with (
                asyncio.timeout(self._followed.patience),
                self._session.get(url, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    raise ValueError(f"HTTP {response.status}")
                body = await read_body(response, _MODELS_LIMIT)
                if len(body) > _MODELS_LIMIT:
                    raise ValueError(f"more than {_MODELS_LIMIT} bytes")
                self._models = read_models(body)
        except aiohttp.ClientConnectionError:  # the next probe says it
            return
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._tell("models", f"{url} lists no models: {str(error) or 'no answer'}")
        else:
            self._tell("models", None)

    async def _read_file(self) -> None:
        if self._file is None:
            return
        before = self._file.content
        try:
            await anyio.to_thread.run_sync(self._file.refresh)
        except ValueError as error:
            self._tell("file", f"{error}; the last good document stays")
            return
        self._tell("file", None)
        now = self._file.content
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        if changed and self._published is not None:
            log.info("%s was read again; it changed in %s", self._file.path, ", ".join(changed))

    def _publish(self) -> None:
        own = describe_transport(self._followed.server, self._followed.engine)
        document = merged(merged(own, self._models), self._file.content if self._file else {})
        if document == self._published:
            return
        try:
            self._handle.set_metadata(document)
        except (TypeError, ValueError) as error:
            self._tell("document", f"the metadata cannot be published: {error}; the last good document stays")
        else:
            self._published = document
            self._tell("document", None)

    def _judge(self, problem: str | None) -> None:
        status = InstanceStatus.READY if problem is None else InstanceStatus.NOT_READY
        before = self._handle.instance.status
        where = self._followed.url(self._followed.health_path).with_user(
            None
        )  # nor a password: it is shown to others
        reason = None if problem is None else f"the server behind it, {where}: {problem}"
        try:
            self._handle.set_ready(status, reason)
        except RegistrationError as error:  # the next round tries again
            self._tell("status", str(error))
            return
        self._tell("status", None)
        if before is not status or problem is not None:
            self._tell("health", f"{status}: {where} {problem or 'is well'}")

    def _tell(self, subject: str, words: str | None) -> None:
        """Log what is new about a subject; None: nothing is wrong with it."""
        if words is not None and words != self._told.get(subject):
            log.info("%s", words)
        self._told[subject] = words


class _Silence(str):
    """A problem that may be none: the server said nothing in time."""

    __slots__ = ()
