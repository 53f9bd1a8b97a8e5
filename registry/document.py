"""The worker's document and what a GET of it is answered: revisions, conditions, waiting. Decides, does no I/O."""

import json
import math
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from discovery.instance import (
    INSTANCE_ID_HEADER,
    INSTANCE_INCARNATION_HEADER,
    INSTANCE_STATUS_HEADER,
    METADATA_LIMIT,
    InstanceStatus,
)

_ENTITY_TAG: Final = re.compile(r'"[\x21\x23-\x7e\x80-\xff]*"')
_LIST_ELEMENT: Final = re.compile(r'(?:[^,"]|"[^"]*")+')
_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)
_DEEPEST: Final = 100

LONGEST_WAIT: Final = 60.0
"""Seconds that a GET is held at most, whatever it asks for: proxies on the way give up after about as long."""
_JSON: Final[Mapping[str, str]] = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class DocumentAnswer:
    status: int
    headers: Mapping[str, str] = field(default_factory=lambda: _JSON)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Hold:
    """Not answered yet: wait for the document's next change, at most `seconds`, then take what `respond` says."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Question:
    """What a GET of the metadata asks: the entity tags it knows (None: it names none), the seconds it would wait."""

    known: frozenset[str] | None = None
    wait: float = 0.0

    @classmethod
    def of(
        cls, if_none_match: str | None, prefer: str | None, *, longest: float = LONGEST_WAIT
    ) -> "Question":
        """From the two header fields, several lines of one joined by commas; no wait is longer than `longest`."""
        return cls(parse_if_none_match(if_none_match), min(parse_wait(prefer), longest))

    def knows(self, etag: str) -> bool:
        return self.known is not None and (etag in self.known or "*" in self.known)


@dataclass(frozen=True)
class Revision:
    """The document at one moment: identity, count, status, bytes; `reason` is why the status is not READY."""

    instance_id: str
    incarnation: str
    epoch: str
    count: int = 0
    status: InstanceStatus = InstanceStatus.NOT_READY
    body: bytes = b"{}"
    reason: str | None = None

    @property
    def etag(self) -> str:
        return f'"{self.incarnation}.{self.epoch}.{self.count}"'

    @cached_property
    def headers(self) -> Mapping[str, str]:
        return {
            "ETag": self.etag,
            INSTANCE_ID_HEADER: self.instance_id,
            INSTANCE_INCARNATION_HEADER: self.incarnation,
            INSTANCE_STATUS_HEADER: self.status.value,
            "Cache-Control": "no-cache",
        }

    def respond(self, question: Question, *, may_hold: bool) -> DocumentAnswer | Hold:
        """RFC 9110 §13.1.2 and RFC 7240 §4.3: 200, 304, or held while nothing changes.

        A wait that is granted is confirmed (`Preference-Applied`), also where the answer is ready at once.
        A worker that drains grants none: whoever asks it would only delay its end.
        """
        granted = may_hold and question.wait > 0 and question.known is not None
        granted = granted and self.status is not InstanceStatus.DRAINING
        if not question.knows(self.etag):
            return self.changed(question if granted else None)
        return Hold(question.wait) if granted else self.unchanged(None)

    def changed(self, granted: Question | None) -> DocumentAnswer:
        return DocumentAnswer(200, {**self.headers, **_JSON, **_applied(granted)}, self.body)

    def unchanged(self, granted: Question | None) -> DocumentAnswer:
        return DocumentAnswer(304, {**self.headers, **_applied(granted)})

    def health(self) -> DocumentAnswer:
        """200 when READY, else 503: what a readiness probe asks."""
        body = {"status": self.status.value, "instance_id": self.instance_id}
        if self.reason is not None:
            body["reason"] = self.reason
        return DocumentAnswer(
            200 if self.status is InstanceStatus.READY else 503, body=json.dumps(body).encode()
        )


@dataclass(eq=False)
class PublishedDocument:
    """The document of one life of one instance. May be changed from any thread; listeners run in that thread."""

    current: Revision
    labels: Mapping[str, str] = field(default_factory=dict)
    _listeners: set[Callable[[], object]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, instance_id: str, incarnation: str) -> "PublishedDocument":
        """An empty one, not ready, with an epoch of its own: a restarted process is told from its predecessor."""
        return cls(Revision(instance_id, incarnation, secrets.token_hex(4)))

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Swap the metadata whole. Raises TypeError or ValueError as `encode_metadata` does; the old one stays."""
        body = encode_metadata(_labelled(metadata, self.labels))
        self._change(lambda current: replace(current, body=body))

    def set_status(self, status: InstanceStatus, reason: str | None = None) -> None:
        self._change(lambda current: replace(current, status=status, reason=reason))

    def identify(
        self, instance_id: str, incarnation: str, labels: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """What the source of truth calls the instance, which may differ from what was proposed to it. `labels` stand
        under `labels` in every document from now on, below what the worker says there: EndpointSlices carry none.
        """
        self.labels = labels
        body = encode_metadata(_labelled({}, labels))
        self._change(
            lambda current: replace(current, instance_id=instance_id, incarnation=incarnation, body=body)
        )

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener` after each change; returns the way to stop that."""
        with self._lock:
            self._listeners.add(listener)
        return lambda: self._forget(listener)

    def _forget(self, listener: Callable[[], object]) -> None:
        with self._lock:
            self._listeners.discard(listener)

    def _change(self, change: Callable[[Revision], Revision]) -> None:
        with self._lock:
            changed = change(self.current)
            if changed == self.current:
                return
            self.current = replace(changed, count=changed.count + 1)
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()


def encode_metadata(metadata: Mapping[str, Any]) -> bytes:
    """The metadata as JSON.

    TypeError: not a mapping with string keys, or a value that JSON has no word for. ValueError: NaN or infinity, a
    string that is no Unicode text, nested too deeply, or longer than `METADATA_LIMIT` bytes. Both name the place.
    """
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping, that is a JSON object, not {type(metadata).__name__}")
    plain = _plain(metadata, "metadata", 0)
    body = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if len(body) > METADATA_LIMIT:
        largest = max(plain, key=lambda key: len(json.dumps(plain[key])))
        raise ValueError(
            f"metadata is {len(body)} bytes of JSON, more than the {METADATA_LIMIT} that readers accept; "
            f"the largest part is {largest!r}: serve it elsewhere and put its address here"
        )
    return body


def _labelled(metadata: Mapping[str, Any], labels: Mapping[str, str]) -> Mapping[str, Any]:
    """Both; a document that is none, or whose `labels` are none, is left to `encode_metadata` and to readers."""
    if not labels or not isinstance(metadata, Mapping):
        return metadata
    own = metadata.get("labels", {})
    return {**metadata, "labels": {**labels, **own}} if isinstance(own, Mapping) else metadata


def parse_if_none_match(value: str | None) -> frozenset[str] | None:
    """The entity tags named, each in its quotes and without `W/`, since the comparison is weak (RFC 9110 §13.1.2);
    a bare `*` stands for any. None if there is no such field."""
    if value is None:
        return None
    return frozenset("*") if value.strip() == "*" else frozenset(_ENTITY_TAG.findall(value))


def parse_wait(prefer: str | None) -> float:
    """The seconds of `Prefer: wait=N`, 0 without it. The first one counts (RFC 7240 §2); fractions are accepted."""
    for element in _LIST_ELEMENT.findall(prefer or ""):
        name, _, value = element.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            seconds = value.strip().strip('"')
            return float(seconds) if _SECONDS.fullmatch(seconds) else 0.0
    return 0.0


def _applied(granted: Question | None) -> Mapping[str, str]:
    return {} if granted is None else {"Preference-Applied": f"wait={granted.wait:g}"}


def _plain(value: Any, place: str, depth: int) -> Any:
    """The value made of nothing but what JSON has, so that no later change of the original can reach it."""
    if depth > _DEEPEST:
        raise ValueError(f"{place[:200]}... is nested deeper than {_DEEPEST} levels, or contains itself")
    if isinstance(value, Mapping):
        return {_key(key, place): _plain(item, f"{place}[{key!r}]", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, str):
        return _text(value, place)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place} is {value}, which JSON has no word for; leave it out or use null")
    if value is None or isinstance(value, bool | int | float):
        return value
    raise TypeError(
        f"{place} is of type {type(value).__name__}, which JSON has no word for; "
        "use str, int, float, bool, None, list or dict"
    )


def _key(key: object, place: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{place} has the key {key!r} of type {type(key).__name__}; keys must be strings")
    return _text(key, f"{place}[{key!r}]")


def _text(text: str, place: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{place} is not Unicode text: it holds a lone surrogate") from error
    return text
