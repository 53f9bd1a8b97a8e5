"""The etcd source: reads a component's keys at one revision, then watches from the next one."""

import asyncio
import math
import time
from typing import Final

from discovery.errors import ForbiddenError, InputFileError
from discovery.etcd.client import EtcdClient, EtcdTimings
from discovery.etcd.connection import RANGE, EtcdStream
from discovery.etcd.errors import (
    CompactedRevisionError,
    EtcdTokenError,
    EtcdUnavailableError,
    TooLargeAnswerError,
)
from discovery.etcd.messages.etcd_pb2 import (
    RangeRequest,
    RangeResponse,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)
from discovery.etcd.url import RENEWALS, EtcdSettings, parse_etcd_url
from discovery.etcd.watched_keys import (
    StoreReplacedError,
    WatchedKeys,
    component_of,
    component_prefix,
    range_end,
)
from discovery.source import ComponentKey, Report, Source

_PAGE: Final = 250
"""Keys in one answer. Records have at most 64 KiB, so it fits into the largest message that we accept; if foreign values do
not, smaller pages are asked for."""
_MAX_LISTED: Final = 10_000
"""Keys that are looked at for the names of components."""


def open_etcd_source(url: str) -> "EtcdSource":
    """Raises ValueError. Connects when it is first used."""
    return EtcdSource(parse_etcd_url(url))


class EtcdSource(Source):
    """Instances are the records under `prefix/namespace/component/`; a worker's record hangs on its lease.

    A stream that breaks is followed by a new range, not by a watch from the last revision: a store that was emptied or
    restored meanwhile may have reached that revision again. A worker missing after an outage stays for a while: leases die
    with a store that stood still, and the workers live.
    """

    def __init__(self, settings: EtcdSettings, timings: EtcdTimings | None = None) -> None:
        self._settings = settings
        self._timings = timings or EtcdTimings()
        self._shared: EtcdClient | None = None

    async def run(self, key: ComponentKey, report: Report) -> None:
        """ForbiddenError and InputFileError before the first snapshot; later they degrade the watch as others do."""
        prefix = component_prefix(self._settings.prefix, key)
        keys = WatchedKeys(key, prefix, report.reader)
        report.degraded(f"no answer yet from etcd at {self._settings.shown}")
        failures, is_synced = 0, False
        while True:
            started = time.monotonic()
            try:
                await self._read(keys, prefix)
                is_synced = True
                await self._follow(keys, prefix, report)
            except (CompactedRevisionError, EtcdTokenError) as error:  # a part of normal operation, once
                if failures:
                    report.degraded(str(error))
            except (EtcdUnavailableError, ForbiddenError, InputFileError, StoreReplacedError) as error:
                if not is_synced and isinstance(error, (ForbiddenError, InputFileError)):
                    raise
                if is_synced:
                    keys.hold_missing()
                report.degraded(str(error))
            failures = 1 if time.monotonic() - started > self._timings.settled else failures + 1
            await asyncio.sleep(self._timings.delay(failures))

    async def components(self) -> list[ComponentKey]:
        prefix = self._settings.prefix.encode()
        request = RangeRequest(key=prefix, range_end=range_end(prefix), limit=_MAX_LISTED, keys_only=True)
        answer = await self._client().call(RANGE, request)
        found = (component_of(self._settings.prefix, stored.key) for stored in answer.kvs)
        return list({component for component in found if component is not None})

    async def aclose(self) -> None:
        if self._shared is not None:
            await self._shared.aclose()

    def _client(self) -> EtcdClient:
        if self._shared is None:
            self._shared = EtcdClient(self._settings, self._timings)
        return self._shared

    async def _read(self, keys: WatchedKeys, prefix: bytes) -> None:
        """All pages, at one revision."""
        request = RangeRequest(key=prefix, range_end=range_end(prefix), limit=_PAGE)
        keys.begin_range()
        while True:
            page = await self._page(request)
            keys.add_page(page)
            request.revision = request.revision or page.header.revision
            if not page.more or not page.kvs:
                break
            request.key = page.kvs[-1].key + b"\0"
        keys.end_range(request.revision)

    async def _page(self, request: RangeRequest) -> RangeResponse:
        while True:
            try:
                return await self._client().call(RANGE, request)
            except TooLargeAnswerError:
                if request.limit == 1:
                    raise
                request.limit = max(1, request.limit // 8)

    async def _follow(self, keys: WatchedKeys, prefix: bytes, report: Report) -> None:
        """Reports the set, and its changes until the stream breaks."""
        until_renewed = self._settings.ttl / RENEWALS  # a worker may notice only then that its lease is gone
        recovered_at = time.monotonic() + until_renewed + self._timings.recovery
        _tell(keys, report)
        request = WatchCreateRequest(
            key=prefix,
            range_end=range_end(prefix),
            start_revision=keys.revision + 1,
            progress_notify=True,
            fragment=True,
        )
        async with self._client().watch(request) as watch:
            while True:
                answer = await self._next(watch, prefix, recovered_at if keys.is_holding else math.inf)
                if answer is None:
                    keys.forget_missing()
                if answer is None or keys.apply(answer):
                    _tell(keys, report)

    async def _next(
        self, watch: EtcdStream[WatchRequest, WatchResponse], prefix: bytes, deadline: float
    ) -> WatchResponse | None:
        """None at `deadline`. A member that stopped keeps its connections open: only an answer proves that it runs. A progress
        request would not do: etcd gives no answer until something was written after the watch began (progressIfSync in its
        watchable_store.go).
        """
        sign_of_life = RangeRequest(key=prefix, range_end=range_end(prefix), limit=1, keys_only=True)
        while True:
            left = deadline - time.monotonic()
            answer = await watch.receive(max(0.0, min(self._timings.probe, left)))
            if answer is not None:
                break
            if left <= self._timings.probe:
                return None
            await self._client().ask_at(watch.connection, RANGE, sign_of_life)
        if answer.compact_revision:
            raise CompactedRevisionError(f"etcd has forgotten revisions before {answer.compact_revision}")
        if answer.canceled:
            raise watch.connection.error("", answer.cancel_reason or "the watch was cancelled")
        return answer


def _tell(keys: WatchedKeys, report: Report) -> None:
    report(keys.snapshot())
    if keys.missing:
        report.degraded(f"etcd is back; {len(keys.missing)} of its workers must register again")
