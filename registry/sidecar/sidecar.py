"""The sidecar's process: follows a model server's health and publishes metadata for it, from a file and its `/v1/models`.

It registers, follows until a signal, and drains until a second one.
"""

import argparse
import asyncio
import logging
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import anyio
import anyio.to_thread
from yarl import URL

from adsum.addresses import authority
from adsum.signals import stop_signals, until_signalled
from discovery.errors import RegistrationError
from discovery.instance import InstanceStatus
from discovery.metadata.connections import connection_problem, read_body
from registry.opening import open
from registry.service import InstanceHandle
from registry.sidecar.model_server import MetadataFile, describe_transport, merge, read_models

log = logging.getLogger("registry")

_MIN_PROBE_TIMEOUT: Final = 1.0
_MAX_MODELS_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FollowedServer:
    """The model server and how to follow it. Times are in seconds; `models_path` None: it lists no models."""

    server: URL
    health_path: str = "/health"
    models_path: str | None = "/v1/models"
    engine: str | None = None
    interval: float = 1.0
    drain_timeout: float = 30.0
    min_probe_timeout: float = _MIN_PROBE_TIMEOUT

    def url(self, path: str) -> URL:
        return self.server.joinpath(path.lstrip("/"))

    @property
    def probe_timeout(self) -> float:
        """Seconds for one response."""
        return max(self.interval, self.min_probe_timeout)


class Sidecar:
    """Keeps one registration in step with one model server."""

    def __init__(
        self,
        followed: FollowedServer,
        handle: InstanceHandle,
        session: aiohttp.ClientSession,
        file: MetadataFile | None = None,
    ) -> None:
        self._followed = followed
        self._handle = handle
        self._session = session
        self._file = file
        self._models: Mapping[str, Any] = {}
        self._logged: dict[str, str | None] = {}
        self._published: Mapping[str, Any] | None = None

    async def follow(self) -> None:
        """Run until cancelled. The file is read first, so that no reader sees a ready worker without its content."""
        await self._read_file()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow_health)
            tasks.start_soon(self._follow_document)

    async def drain(self) -> None:
        """Report DRAINING, wait until the server's health check fails, at most the drain timeout, then leave.

        The server's own requests are invisible here; that it stops answering is the only sign that they are done.
        """
        timeout = self._followed.drain_timeout
        log.info("draining: waiting up to %g s for %s to stop", timeout, self._followed.server)
        with suppress(RegistrationError):  # leaving matters more than reporting DRAINING before
            self._handle.set_ready(InstanceStatus.DRAINING)
        with anyio.move_on_after(timeout) as waiting:
            await self._wait_until_down()
        if waiting.cancelled_caught:
            log.info("%s still serves after %g s", self._followed.server, timeout)
        await self._handle.drain(0.0)
        log.info("left")

    async def _follow_health(self) -> None:
        while True:
            problem = await self._probe_twice()
            if problem is None and self._handle.instance.status is not InstanceStatus.READY:
                await self._update_models()
                self._publish()
            self._update_status(problem)
            await anyio.sleep(self._followed.interval)

    async def _follow_document(self) -> None:
        while True:
            await self._read_file()
            if self._handle.instance.status is InstanceStatus.READY:
                await self._update_models()
            self._publish()
            await anyio.sleep(self._followed.interval)

    async def _wait_until_down(self) -> None:
        while await self._probe_twice() is None:  # noqa: ASYNC110 -- another process's health has no event to wait for
            await anyio.sleep(self._followed.interval)

    async def _probe_twice(self) -> str | None:
        """As `_probe`, asked again after silence: a busy server misses one probe, a hanging one misses two."""
        problem = await self._probe()
        return await self._probe() if isinstance(problem, _ProbeTimeout) else problem

    async def _probe(self) -> str | None:
        """None if the server is healthy, else the problem."""
        url = self._followed.url(self._followed.health_path)
        try:
            async with (
                asyncio.timeout(self._followed.probe_timeout),
                self._session.get(url, allow_redirects=False) as response,
            ):
                return None if response.ok and response.status < 300 else f"HTTP {response.status}"
        except TimeoutError:
            return _ProbeTimeout(f"no answer within {self._followed.probe_timeout:g} s")
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            return connection_problem(error)

    async def _update_models(self) -> None:
        """Fetch the list of models; after a failure the last list stays published."""
        if self._followed.models_path is None:
            return
        url = self._followed.url(self._followed.models_path)
        try:
            async with (
                asyncio.timeout(self._followed.probe_timeout),
                self._session.get(url, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    raise ValueError(f"HTTP {response.status}")
                body = await read_body(response, _MAX_MODELS_BYTES)
                if len(body) > _MAX_MODELS_BYTES:
                    raise ValueError(f"more than {_MAX_MODELS_BYTES} bytes")
                self._models = read_models(body)
        except aiohttp.ClientConnectionError:  # the next probe logs it
            return
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._log_change(
                "models", f"{url} lists no models: {str(error) or 'no answer'}; the last list stays published"
            )
        else:
            self._log_change("models", None)

    async def _read_file(self) -> None:
        if self._file is None:
            return
        before = self._file.content
        try:
            await anyio.to_thread.run_sync(self._file.refresh)
        except ValueError as error:
            self._log_change("file", f"{error}; the last good document stays published")
            return
        self._log_change("file", None)
        now = self._file.content
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        if changed and self._published is not None:
            log.info("%s was read again; changed fields: %s", self._file.path, ", ".join(changed))

    def _publish(self) -> None:
        own = describe_transport(self._followed.server, self._followed.engine)
        document = merge(merge(own, self._models), self._file.content if self._file else {})
        if document == self._published:
            return
        try:
            self._handle.set_metadata(document)
        except (TypeError, ValueError) as error:
            problem = f"the metadata cannot be published: {error}; the last good document stays published"
            self._log_change("document", problem)
        else:
            self._published = document
            self._log_change("document", None)

    def _update_status(self, problem: str | None) -> None:
        status = InstanceStatus.READY if problem is None else InstanceStatus.NOT_READY
        before = self._handle.instance.status
        # without user and password: /health and `explain` show it to others
        shown_url = self._followed.url(self._followed.health_path).with_user(None)
        reason = None if problem is None else f"the server behind it, {shown_url}: {problem}"
        try:
            self._handle.set_ready(status, reason)
        except RegistrationError as error:  # the next round tries again
            self._log_change("status", str(error))
            return
        self._log_change("status", None)
        if before is not status or problem is not None:
            self._log_change("health", f"{status}: {shown_url} {problem or 'is healthy'}")

    def _log_change(self, subject: str, message: str | None) -> None:
        """Log a message unless it is the last one of this subject; None: the problem is over."""
        if message is not None and message != self._logged.get(subject):
            log.info("%s", message)
        self._logged[subject] = message


class _ProbeTimeout(str):
    """The text of a problem that may pass: no response in time."""


async def serve(options: argparse.Namespace) -> None:
    """Until a signal, and the drain after it. Raises AdsumError, ValueError and OSError."""
    with stop_signals() as signals:
        file = None if options.metadata_file is None else MetadataFile(options.metadata_file)
        if file is not None:
            file.refresh()
        opened = open(
            options.discovery,
            address=options.address or _own_address(options.server),
            port=options.port,
            instance_id=options.instance_id,
            labels=dict(options.labels),
            token=os.environ.get("ADSUM_TOKEN") or None,
        )
        async with (
            AsyncExitStack() as stack,
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=False) as session,
        ):
            registration = opened.register_instance(options.namespace, options.component)
            # if another host's record holds the id, this takes seconds
            handle = await until_signalled(signals, stack.enter_async_context(registration))
            if handle is None:
                log.info("stopped by a signal before it was registered")
                return
            instance = handle.instance
            shown_address = authority(instance.address, instance.port)
            log.info("%s/%s %s at %s", instance.namespace, instance.component, instance.id, shown_address)
            sidecar = Sidecar(_followed(options), handle, session, file)
            await until_signalled(signals, sidecar.follow())
            await until_signalled(signals, sidecar.drain())  # the second signal cuts it short


def _followed(options: argparse.Namespace) -> FollowedServer:
    return FollowedServer(
        server=options.server,
        health_path=options.health_path,
        models_path=options.models_path or None,
        engine=options.engine,
        interval=options.interval,
        drain_timeout=options.drain_timeout,
    )


def _own_address(server: URL) -> str | None:
    return None if server.host in ("127.0.0.1", "::1", "localhost") else server.host
