"""The fake's storage: the objects, and their changes by resourceVersion.

Semantics as of kube-apiserver 1.37: one counter for all kinds, a watch cache with a window, a storage that is compacted.
"""

import copy
import re
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

_REQUIREMENT = re.compile(
    r"\s*(?P<absent>!)?\s*(?P<key>[A-Za-z0-9./_-]+)\s*"
    r"(?:(?P<op>==|=|!=)\s*(?P<value>[A-Za-z0-9._-]*)|\s(?P<set>in|notin)\s*\((?P<values>[^)]*)\))?\s*(?:,|$)"
)


class SelectorError(Exception):
    """The server answers 400."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One label: `values` None: only its presence counts."""

    key: str
    negated: bool
    values: frozenset[str] | None

    def matches(self, labels: Mapping[str, str]) -> bool:
        hit = self.key in labels and (self.values is None or labels[self.key] in self.values)
        return hit != self.negated


@dataclass(frozen=True, slots=True)
class Selector:
    """All of `requirements`, and `name` unless None."""

    requirements: tuple[Requirement, ...] = ()
    name: str | None = None

    @classmethod
    def parse(cls, labels: str, fields: str = "") -> "Selector":
        """Raises `SelectorError` for what a server would not understand either."""
        requirements, at = [], 0
        while at < len(labels):
            match = _REQUIREMENT.match(labels, at)
            if match is None:
                raise SelectorError(f"unable to parse requirement: found {labels[at:]!r}")
            requirements.append(_requirement(match))
            at = match.end()
        key, _, name = fields.partition("=")
        if fields and key != "metadata.name":
            raise SelectorError(f"field label not supported: {key}")
        return cls(tuple(requirements), name.lstrip("=") if fields else None)

    def matches(self, obj: Mapping[str, Any]) -> bool:
        meta = obj["metadata"]
        if self.name is not None and meta["name"] != self.name:
            return False
        labels = meta.get("labels") or {}
        return all(requirement.matches(labels) for requirement in self.requirements)


def _requirement(match: re.Match[str]) -> Requirement:
    negated = bool(match["absent"]) or match["op"] == "!=" or match["set"] == "notin"
    if match["op"]:
        return Requirement(match["key"], negated, frozenset([match["value"]]))
    if match["set"]:
        return Requirement(match["key"], negated, frozenset(v.strip() for v in match["values"].split(",")))
    return Requirement(match["key"], negated, None)


Object: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, str, str]
"""Resource (plural), namespace, name."""


_NOW = "2026-01-01T00:00:00Z"
"""All is made in the same second."""


class ExpiredError(Exception):
    """The version is older than what is remembered; `oldest` is the first that would do."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {asked} ({oldest})")
        self.oldest = oldest


@dataclass(frozen=True, slots=True)
class Change:
    """One write. `before` None: it was created; `after` None: deleted. `lost`: no watcher is told."""

    rv: int
    key: Key
    before: Object | None
    after: Object | None
    lost: bool = False

    def event(self, selector: Selector) -> tuple[str, Object] | None:
        """How a watcher with `selector` sees it: leaving the selection is DELETED, with the previous content and this
        write's version.
        """
        was = self.before is not None and selector.matches(self.before)
        if self.after is not None and selector.matches(self.after):
            return ("MODIFIED" if was else "ADDED"), self.after
        if not was or self.before is None:
            return None
        return "DELETED", self.before | {
            "metadata": self.before["metadata"] | {"resourceVersion": str(self.rv)}
        }


class RvLog:
    """The store. Objects handed in are copied, objects handed out must not be changed."""

    def __init__(self, rv: int = 1000) -> None:
        self.rv = rv
        self.oldest_watch = rv
        """Watches may start at this version or later: the window of the server's watch cache."""
        self.oldest_read = rv
        """Exact lists, hence pages, may be read at this version or later: etcd's compaction."""
        self._objects: dict[Key, Object] = {}
        self._changes: list[Change] = []
        self._listeners: set[Callable[[], None]] = set()
        self._silent = False
        self._uids = 0

    def put(self, resource: str, obj: Object) -> Object:
        """Create or replace. An equal object is no write: no version, no event."""
        stored = copy.deepcopy(obj)
        meta = stored.setdefault("metadata", {})
        key = (resource, meta.setdefault("namespace", "default"), meta["name"])
        before = self._objects.get(key)
        meta["uid"] = before["metadata"]["uid"] if before else meta.get("uid") or self._new_uid()
        meta["resourceVersion"] = before["metadata"]["resourceVersion"] if before else ""
        meta.setdefault("generation", 1)
        meta.setdefault("creationTimestamp", before["metadata"]["creationTimestamp"] if before else _NOW)
        if before == stored:
            return before
        self.rv += 1
        meta["resourceVersion"] = str(self.rv)
        self._objects[key] = stored
        self._record(Change(self.rv, key, before, stored, self._silent))
        return stored

    def delete(self, resource: str, namespace: str, name: str) -> Object:
        """Raises KeyError when there is no such object."""
        key = (resource, namespace, name)
        before = self._objects.pop(key)
        self.rv += 1
        self._record(Change(self.rv, key, before, None, self._silent))
        return before

    def get(self, resource: str, namespace: str, name: str) -> Object | None:
        return self._objects.get((resource, namespace, name))

    def objects(
        self, resource: str, namespace: str, selector: Selector | None = None, *, at: int | None = None
    ) -> list[Object]:
        """By name; as it was at version `at` if given. Raises `ExpiredError` when that is compacted."""
        there = self._objects if at is None else self._past(at)
        keys = sorted(k for k in there if k[:2] == (resource, namespace))
        return [there[k] for k in keys if selector is None or selector.matches(there[k])]

    def changes_after(self, rv: int, resource: str, namespace: str) -> list[Change]:
        """What watchers are sent, in order; nothing for a version of the future."""
        later = self._changes[self._index_after(rv) :]
        return [c for c in later if not c.lost and c.key[:2] == (resource, namespace)]

    def forget(self) -> None:
        """The watch window starts now, as after a restart of the server or a burst of writes."""
        self.oldest_watch = self.rv

    def compact(self) -> None:
        """etcd forgets all but the newest version of each object: pages begun before cannot go on."""
        self.oldest_read = self.rv

    @contextmanager
    def silently(self) -> Iterator[None]:
        """Writes inside are never told to watchers (k8s#123072: the server loses an event)."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def restore(self, rv: int) -> None:
        """etcd comes back from a backup taken at `rv`, without a revision bump: the version goes backwards."""
        self._objects = self._past(rv)
        del self._changes[self._index_after(rv) :]
        self.rv = rv
        self.oldest_watch = min(self.oldest_watch, rv)

    def fork(self) -> "RvLog":
        """A replica that gets no further writes."""
        other = RvLog(self.rv)
        other.oldest_watch, other.oldest_read = self.oldest_watch, self.oldest_read
        other._objects, other._changes, other._uids = dict(self._objects), list(self._changes), self._uids
        return other

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """`listener()` after every write, as long as the block lasts."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    def _record(self, change: Change) -> None:
        self._changes.append(change)
        for listener in list(self._listeners):
            listener()

    def _past(self, at: int) -> dict[Key, Object]:
        if at < self.oldest_read:
            raise ExpiredError(at, self.oldest_read)
        objects = dict(self._objects)
        for change in reversed(self._changes[self._index_after(at) :]):
            if change.before is None:
                del objects[change.key]
            else:
                objects[change.key] = change.before
        return objects

    def _index_after(self, rv: int) -> int:
        return bisect_right(self._changes, rv, key=lambda change: change.rv)

    def _new_uid(self) -> str:
        self._uids += 1
        return str(uuid.UUID(int=self._uids))
