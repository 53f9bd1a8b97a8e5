"""One key in etcd that this process has taken, and the lease on which it hangs."""

import asyncio
import logging
import time
from typing import Final

from pydantic import ValidationError

from discovery.errors import RegistrationError
from discovery.etcd.client import EtcdClient
from discovery.etcd.connection import LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE, LEASE_TIME_TO_LIVE, TXN
from discovery.etcd.errors import LeaseExpiredError
from discovery.etcd.messages import etcd_pb2 as etcd
from discovery.record import RECORD_LIMIT, InstanceRecord, encode_record

log = logging.getLogger(__name__)

_POLL: Final = 0.25
"""Seconds between two looks at a key that is taken."""
_SLACK: Final = 3.0
"""Seconds by which etcd may remove a key later than its lease says."""


class KeyTakenError(RegistrationError):
    """Another worker has the key."""

    def __init__(self, held: etcd.KeyValue, instance_id: str) -> None:
        self.held = held
        self.instance_id = instance_id
        key = held.key.decode(errors="replace")
        who = (
            "a living process: choose another id, or none and one is made"
            if held.lease
            else f"a record that hangs on no lease: if nobody needs it, remove it: etcdctl del {key}"
        )
        super().__init__(f"the instance id {instance_id!r} is held in etcd by {who}")


class HeldKey:
    """`ttl`: of the lease, in seconds. Every method raises what `EtcdClient.call` does."""

    def __init__(self, client: EtcdClient, key: bytes, ttl: int) -> None:
        self._client = client
        self._key = key
        self._ttl = ttl
        self._lease = 0

    async def take(self, record: InstanceRecord) -> None:
        """Put the record under the key, on a lease of ours. KeyTakenError if another worker has the key."""
        value = encode_record(record)
        if not self._lease:
            granted = await self._client.call(LEASE_GRANT, etcd.LeaseGrantRequest(TTL=self._ttl))
            self._lease = granted.ID
        request = _take(self._key, value, self._lease)
        while True:
            answer = await self._call(request)
            if answer.succeeded:
                return
            held = _holder(answer)
            if held is None:  # it was removed meanwhile
                request = _take(self._key, value, self._lease)
            elif _incarnation(held) == record.incarnation:  # ours: from a lost answer, or an older lease
                request = _replace(held, value, self._lease)
            else:
                raise KeyTakenError(held, record.instance_id)

    async def take_when_free(self, record: InstanceRecord) -> None:
        """Wait for the lease of a dead worker that had the key. KeyTakenError once it is plain that it lives."""
        try:
            return await self.take(record)
        except KeyTakenError as error:
            taken = error
        left = await self._seconds_left(taken)
        log.info("waiting up to %d s: a record in etcd holds the id %r", left, record.instance_id)
        deadline = time.monotonic() + left + _SLACK
        while True:
            await asyncio.sleep(_POLL)
            try:
                return await self.take(record)
            except KeyTakenError as error:
                before, left = left, await self._seconds_left(error)
                if error.held.lease != taken.held.lease or left > before or time.monotonic() > deadline:
                    raise

    async def renew(self) -> bool:
        """Keep the lease alive. False if etcd has forgotten it, and with it the key."""
        if not self._lease:
            return False
        answer = await self._client.call(LEASE_KEEP_ALIVE, etcd.LeaseKeepAliveRequest(ID=self._lease))
        if answer.TTL <= 0:
            self._lease = 0
        return self._lease != 0

    async def rewrite(self, record: InstanceRecord | None) -> bool:
        """Write the record, if the key is ours; None: only ask. False if it is not ours any more."""
        if not self._lease:  # a key that does not exist hangs on lease 0, too
            return False
        value = None if record is None else encode_record(record)
        try:
            answer = await self._call(_rewrite(self._key, value, self._lease))
        except LeaseExpiredError:
            return False
        return bool(answer.succeeded)

    async def release(self) -> None:
        """Revoke the lease, which removes the key."""
        if self._lease:
            lease, self._lease = self._lease, 0
            await self._client.call(LEASE_REVOKE, etcd.LeaseRevokeRequest(ID=lease))

    async def _call(self, request: etcd.TxnRequest) -> etcd.TxnResponse:
        try:
            return await self._client.call(TXN, request)
        except LeaseExpiredError:
            self._lease = 0
            raise

    async def _seconds_left(self, taken: KeyTakenError) -> int:
        """For the lease of whoever has the key. Raises `taken` if there is none."""
        if not taken.held.lease:
            raise taken
        answer = await self._client.call(LEASE_TIME_TO_LIVE, etcd.LeaseTimeToLiveRequest(ID=taken.held.lease))
        return max(0, int(answer.TTL))  # -1: it ended meanwhile


def _incarnation(held: etcd.KeyValue) -> str | None:
    if len(held.value) > RECORD_LIMIT:
        return None
    try:
        return InstanceRecord.model_validate_json(held.value).incarnation
    except ValidationError:
        return None


def _take(key: bytes, value: bytes, lease: int) -> etcd.TxnRequest:
    """Puts the record if nobody has the key; otherwise reads who has it."""
    is_free = etcd.Compare(target=etcd.Compare.CREATE, result=etcd.Compare.EQUAL, key=key, create_revision=0)
    return etcd.TxnRequest(compare=[is_free], success=[_put(key, value, lease)], failure=[_read(key)])


def _rewrite(key: bytes, value: bytes | None, lease: int) -> etcd.TxnRequest:
    """Puts the record if the key hangs on our lease; `value` None: only asks whether it does."""
    is_ours = etcd.Compare(target=etcd.Compare.LEASE, result=etcd.Compare.EQUAL, key=key, lease=lease)
    return etcd.TxnRequest(compare=[is_ours], success=[] if value is None else [_put(key, value, lease)])


def _replace(held: etcd.KeyValue, value: bytes, lease: int) -> etcd.TxnRequest:
    """Puts the record if the key is still as it was read; otherwise reads who has it."""
    key = held.key
    is_same = etcd.Compare(
        target=etcd.Compare.MOD, result=etcd.Compare.EQUAL, key=key, mod_revision=held.mod_revision
    )
    return etcd.TxnRequest(compare=[is_same], success=[_put(key, value, lease)], failure=[_read(key)])


def _holder(answer: etcd.TxnResponse) -> etcd.KeyValue | None:
    """The holder of the key, from the answer to what failed; None: nobody any more."""
    kvs = answer.responses[0].response_range.kvs if answer.responses else []
    return kvs[0] if kvs else None


def _put(key: bytes, value: bytes, lease: int) -> etcd.RequestOp:
    return etcd.RequestOp(request_put=etcd.PutRequest(key=key, value=value, lease=lease))


def _read(key: bytes) -> etcd.RequestOp:
    return etcd.RequestOp(request_range=etcd.RangeRequest(key=key))
