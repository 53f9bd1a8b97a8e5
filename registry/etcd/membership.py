"""Registers one instance by a key in etcd, whose lease this process keeps alive."""

import asyncio
import logging
import time
from typing import Final

import anyio

from adsum.tasks import BackgroundTasks, wait_at_most
from discovery.errors import AdsumError, DiscoveryError, RegistrationError
from discovery.etcd.client import EtcdClient, EtcdTimings
from discovery.etcd.errors import EtcdUnavailableError
from discovery.etcd.url import RENEWALS, EtcdSettings, parse_etcd_url
from discovery.etcd.watched_keys import instance_key
from discovery.instance import Instance
from discovery.record import InstanceRecord, encode_record, record_of
from discovery.source import ComponentKey
from registry.etcd.held_key import HeldKey
from registry.registration import Announcement, MembershipRegistry

log = logging.getLogger(__name__)

_JOIN_TIMEOUT: Final = 15.0
"""Seconds for which a registering worker asks an etcd that does not answer."""
_LEAVE_TIMEOUT: Final = 3.0
"""Seconds for which a leaving worker asks; after that its lease expires by itself."""


def open_etcd_registry(url: str, announcement: Announcement) -> MembershipRegistry:
    """Raises ValueError for an invalid URL."""
    settings = parse_etcd_url(url)
    return MembershipRegistry(lambda: EtcdMembership(settings), announcement)


class EtcdMembership:
    """One instance's key and lease. A changed status reaches etcd a moment after `update`, which must not block."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._timings = EtcdTimings(call=min(3.0, settings.ttl / 4))
        self._client: EtcdClient | None = None
        self._held: HeldKey | None = None
        self._wanted: InstanceRecord | None = None
        self._changed = asyncio.Event()
        self._keeping = BackgroundTasks()

    async def join(self, instance: Instance) -> Instance:
        """Claim the id and write the record. RegistrationError if the id is taken, or etcd does not let us in time."""
        record = record_of(instance)
        key = instance_key(
            self._settings.prefix, ComponentKey(instance.namespace, instance.component), instance.id
        )
        try:
            encode_record(record)
            self._client = EtcdClient(self._settings, self._timings)
            self._held = HeldKey(self._client, key, self._settings.ttl)
            await self._take(self._held, record)
        except (DiscoveryError, ValueError) as error:
            raise RegistrationError(f"{instance.id} cannot be registered: {error}") from error
        self._wanted = record
        self._keeping.start(self._keep(self._held, record), f"keep the lease of {instance.id}")
        return instance

    def update(self, instance: Instance) -> None:
        """Written in the background, again and again until etcd has it. RegistrationError after `leave`."""
        if self._wanted is None:
            raise RegistrationError(f"{instance.id} has left; register it again")
        self._wanted = record_of(instance)
        self._changed.set()

    async def leave(self) -> None:
        """Remove the key. If etcd does not answer, the lease removes it later. Idempotent."""
        record, self._wanted = self._wanted, None
        await self._keeping.aclose()
        client, held, self._client, self._held = self._client, self._held, None, None
        if client is None or held is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                async with asyncio.timeout(_LEAVE_TIMEOUT):
                    await held.release()
            except (AdsumError, TimeoutError) as error:
                if record is not None:
                    log.warning(
                        "%s leaves, but etcd does not remove its record (%s): it expires within %d s",
                        record.instance_id, error or "no answer", self._settings.ttl,
                    )  # fmt: skip
            await client.aclose()

    async def _take(self, held: HeldKey, record: InstanceRecord) -> None:
        deadline = time.monotonic() + _JOIN_TIMEOUT
        failures = 0
        while True:
            try:
                return await held.take_when_free(record)
            except EtcdUnavailableError:
                failures += 1
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(self._timings.delay(failures))

    async def _keep(self, held: HeldKey, written: InstanceRecord) -> None:
        """Renew the lease and write what changed, until cancelled. A failure is retried and logged once."""
        interval = self._settings.ttl / RENEWALS
        renew_at = time.monotonic() + interval
        reported: str | None = None
        failures = 0
        while True:
            pause = self._timings.delay(failures) if failures else renew_at - time.monotonic()
            await self._wait(pause)
            record = self._wanted or written
            try:
                is_due = time.monotonic() >= renew_at
                await self._refresh(held, record, is_changed=record != written, is_due=is_due)
                renew_at = time.monotonic() + interval if is_due else renew_at
                written, problem, failures = record, None, 0
            except AdsumError as error:
                problem, failures = str(error), failures + 1
            if problem != reported:
                level = logging.INFO if problem is None else logging.WARNING
                log.log(level, "%s: %s", record.instance_id, problem or "etcd has its record")
            reported = problem

    async def _refresh(
        self, held: HeldKey, record: InstanceRecord, *, is_changed: bool, is_due: bool
    ) -> None:
        is_kept = not is_due or await held.renew()
        if not is_kept or not await held.rewrite(record if is_changed else None):
            await held.take(record)
            log.warning("%s: its key in etcd was gone; it is registered again", record.instance_id)

    async def _wait(self, pause: float) -> None:
        """Until the status changed, `pause` seconds at most."""
        await wait_at_most(max(0.0, pause), self._changed)
        self._changed.clear()
