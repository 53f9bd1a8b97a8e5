"""The records of one component as etcd's answers tell them: a range whole, then changes (pure).

Instances are under `/prefix/namespace/component/instance-id`.
"""

from dataclasses import replace
from typing import Final

from adsum.quoting import printable
from discovery.copy_on_write import CopyOnWriteDict
from discovery.etcd.messages.etcd_pb2 import Event, KeyValue, RangeResponse, WatchResponse
from discovery.instance import Instance, InstanceStatus, MetadataReader
from discovery.record import InstanceRecord, decode_record
from discovery.source import Candidate, ComponentKey, PersistentSnapshot, component_key

_MAX_NAME: Final = 512
"""Bytes of a key, behind the prefix, by which one that is no instance's is remembered."""


def component_prefix(prefix: str, key: ComponentKey) -> bytes:
    """The beginning of the keys of all instances of one component; `prefix` has a slash at both ends."""
    return f"{prefix}{key.namespace}/{key.component}/".encode()


def instance_key(prefix: str, key: ComponentKey, instance_id: str) -> bytes:
    return component_prefix(prefix, key) + instance_id.encode()


def range_end(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`, which ends in a slash."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def component_of(prefix: str, key: bytes) -> ComponentKey | None:
    """None if nothing of ours is under that key."""
    # bounded: four parts
    parts = key.removeprefix(prefix.encode()).split(b"/", 3)
    if len(parts) != 3:
        return None
    try:
        return component_key(parts[0].decode(), parts[1].decode())
    except ValueError:
        return None


class StoreReplacedError(Exception):
    """The revision went back: another store answers, an empty one or a backup."""


class WatchedKeys:
    """`prefix`: of the component's keys. `revision`: up to which changes are known.

    From `hold_missing` to `forget_missing` ready instances whose keys are gone stay, and are `missing`. An etcd that stood still or
    came back empty has lost the leases of workers that live: they register again within seconds.
    """

    def __init__(self, key: ComponentKey, prefix: bytes, reader: MetadataReader) -> None:
        self.revision = 0
        self.missing: set[str] = set()
        self.is_holding = False
        self._key = key
        self._prefix = prefix
        self._reader = reader
        self._known: CopyOnWriteDict[Instance] = CopyOnWriteDict()
        self._ready: CopyOnWriteDict[Instance] = CopyOnWriteDict()
        self._rejected: dict[bytes, Candidate] = {}
        self._present: set[bytes] = set()
        self._is_changed = False

    def begin_range(self) -> None:
        """`add_page` for each page and `end_range` follow."""
        self._present.clear()

    def add_page(self, page: RangeResponse) -> None:
        """An unchanged instance stays the same object, so that comparing sets is fast."""
        for stored in page.kvs:
            self._present.add(self._name(stored))
            self._put(stored)

    def end_range(self, revision: int) -> None:
        """An instance that was in no page is gone."""
        known = (name.encode() for name in self._known)
        for name in {*known, *self._rejected} - self._present:
            self._remove(name)
        self._present.clear()
        self.revision = revision

    def apply(self, answer: WatchResponse) -> bool:
        """Whether a new snapshot is due. Raises StoreReplacedError; `canceled` is the caller's to look at."""
        if answer.header.revision < self.revision:
            raise StoreReplacedError(
                f"etcd's revision went back from {self.revision} to {answer.header.revision}"
            )
        for event in answer.events:
            if event.type == Event.DELETE:
                self._remove(self._name(event.kv))
            else:
                self._put(event.kv)
        self._is_changed |= bool(answer.events)
        if answer.fragment:  # the rest of one revision's changes follows
            return False
        self.revision = answer.header.revision
        is_changed, self._is_changed = self._is_changed, False
        return is_changed

    def hold_missing(self) -> None:
        self.is_holding = True

    def forget_missing(self) -> None:
        self.is_holding = False
        for name in list(self.missing):
            self._delete(name.encode())

    def snapshot(self) -> PersistentSnapshot:
        return PersistentSnapshot(self._known.frozen(), self._ready.frozen(), self._rejected.values())

    def _put(self, stored: KeyValue) -> None:
        name = self._name(stored)
        try:
            text = name.decode()
            instance = decode_record(InstanceRecord, stored.value, self._key, text).instance()
        except ValueError as error:
            self._delete(name)
            why = f"its record cannot be used: {error}"
            self._rejected[name] = Candidate(printable(name.decode(errors="replace"), 200), reason=why)
            return
        self._rejected.pop(name, None)
        self.missing.discard(text)
        if self._known.get(text) != instance:
            self._known[text] = replace(instance, reader=self._reader)
        if instance.status is not InstanceStatus.READY:
            _discard(self._ready, text)
        elif self._ready.get(text) is not self._known[text]:
            self._ready[text] = self._known[text]

    def _remove(self, name: bytes) -> None:
        text = name.decode(errors="replace")
        if self.is_holding and text in self._ready:
            self.missing.add(text)
        else:
            self._delete(name)

    def _delete(self, name: bytes) -> None:
        self._rejected.pop(name, None)
        text = name.decode(errors="replace")
        self.missing.discard(text)
        _discard(self._known, text)
        _discard(self._ready, text)

    def _name(self, stored: KeyValue) -> bytes:
        return stored.key.removeprefix(self._prefix)[:_MAX_NAME]


def _discard(instances: CopyOnWriteDict[Instance], name: str) -> None:
    if name in instances:
        del instances[name]
