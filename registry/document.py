"""The metadata document and the response to a conditional or held GET of it: ETag, 304, `Prefer: wait`. No I/O."""

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
_MAX_DEPTH: Final = 100

MAX_WAIT: Final = 60.0
"""Upper bound of `Prefer: wait`, in seconds: nginx (`proxy_read_timeout`) and AWS load balancers end a silent request
after 60 s by default."""
_JSON: Final[Mapping[str, str]] = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class DocumentResponse:
    status: int
    headers: Mapping[str, str] = field(default_factory=lambda: _JSON)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Hold:
    """No response yet: the caller waits for the next change of the document, at most `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    """A conditional GET: the entity tags of If-None-Match (None without the field), and `Prefer: wait` in seconds."""

    etags: frozenset[str] | None = None
    wait: float = 0.0

    @classmethod
    def from_headers(
        cls, if_none_match: str | None, prefer: str | None, *, max_wait: float = MAX_WAIT
    ) -> "MetadataRequest":
        """Several lines of one field are joined by commas. `max_wait` bounds the wait."""
        return cls(parse_if_none_match(if_none_match), min(parse_wait(prefer), max_wait))

    def matches(self, etag: str) -> bool:
        return self.etags is not None and (etag in self.etags or "*" in self.etags)


@dataclass(frozen=True)
class Revision:
    """One version of the document. `reason` says why the status is not READY."""

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

    def respond(self, request: MetadataRequest, *, can_hold: bool) -> DocumentResponse | Hold:
        """200 or 304 (RFC 9110 §13.1.2), or `Hold` if the client prefers to wait (RFC 7240 §4.3) and knows this version.

        `Preference-Applied` confirms a granted wait also on a response that comes at once: readers learn from it
        whether this worker holds GETs. A draining worker holds none, because a held GET delays its shutdown.
        """
        granted = can_hold and request.wait > 0 and request.etags is not None
        granted = granted and self.status is not InstanceStatus.DRAINING
        if not request.matches(self.etag):
            return self.changed(request if granted else None)
        return Hold(request.wait) if granted else self.unchanged(None)

    def changed(self, granted: MetadataRequest | None) -> DocumentResponse:
        return DocumentResponse(200, {**self.headers, **_JSON, **_preference_applied(granted)}, self.body)

    def unchanged(self, granted: MetadataRequest | None) -> DocumentResponse:
        return DocumentResponse(304, {**self.headers, **_preference_applied(granted)})

    def health(self) -> DocumentResponse:
        """200 when READY, else 503: what a readiness probe asks."""
        body = {"status": self.status.value, "instance_id": self.instance_id}
        if self.reason is not None:
            body["reason"] = self.reason
        return DocumentResponse(
            200 if self.status is InstanceStatus.READY else 503, body=json.dumps(body).encode()
        )


@dataclass(eq=False)
class PublishedDocument:
    """The document of one incarnation. Any thread may change it; listeners run in the thread that changed it."""

    current: Revision
    labels: Mapping[str, str] = field(default_factory=dict)
    _listeners: set[Callable[[], object]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, instance_id: str, incarnation: str) -> "PublishedDocument":
        """An empty document, NOT_READY, with a new epoch: a Pod keeps its UID when its container restarts in place."""
        return cls(Revision(instance_id, incarnation, secrets.token_hex(4)))

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata as a whole. Raises what `encode_metadata` raises; the old metadata then stays."""
        body = encode_metadata(_with_labels(metadata, self.labels))
        self._change(lambda current: replace(current, body=body))

    def set_status(self, status: InstanceStatus, reason: str | None = None) -> None:
        self._change(lambda current: replace(current, status=status, reason=reason))

    def identify(
        self, instance_id: str, incarnation: str, labels: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Set the id and incarnation that the source of truth chose, and clear the metadata.

        `labels` become the defaults of the field `labels` in each later document: EndpointSlices carry no Pod labels.
        """
        self.labels = labels
        body = encode_metadata(_with_labels({}, labels))
        self._change(
            lambda current: replace(current, instance_id=instance_id, incarnation=incarnation, body=body)
        )

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener` after each change; the returned function unsubscribes it."""
        with self._lock:
            self._listeners.add(listener)
        return lambda: self._unsubscribe(listener)

    def _unsubscribe(self, listener: Callable[[], object]) -> None:
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

    Raises TypeError for anything but a mapping with string keys, and for a value that JSON cannot represent; ValueError
    for NaN, infinity, a lone surrogate, too deep nesting, or more than `METADATA_LIMIT` bytes. Both name the value.
    """
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping, that is a JSON object, not {type(metadata).__name__}")
    plain = _to_json(metadata, "metadata", 0)
    body = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if len(body) > METADATA_LIMIT:
        largest = max(plain, key=lambda key: len(json.dumps(plain[key])))
        raise ValueError(
            f"metadata is {len(body)} bytes of JSON, more than the {METADATA_LIMIT} that readers accept; "
            f"the largest part is {largest!r}: serve it elsewhere and put its address here"
        )
    return body


def _with_labels(metadata: Mapping[str, Any], labels: Mapping[str, str]) -> Mapping[str, Any]:
    """The metadata with `labels` as defaults. Invalid metadata is returned as it is: `encode_metadata` rejects it."""
    if not labels or not isinstance(metadata, Mapping):
        return metadata
    own = metadata.get("labels", {})
    return {**metadata, "labels": {**labels, **own}} if isinstance(own, Mapping) else metadata


def parse_if_none_match(value: str | None) -> frozenset[str] | None:
    """The entity tags, in quotes and without `W/`: If-None-Match compares weakly (RFC 9110 §13.1.2). "*" matches any.

    None without the field.
    """
    if value is None:
        return None
    return frozenset("*") if value.strip() == "*" else frozenset(_ENTITY_TAG.findall(value))


def parse_wait(prefer: str | None) -> float:
    """The seconds of `Prefer: wait=N`, 0 without it. The first of several counts (RFC 7240 §2). Fractions are accepted."""
    for element in _LIST_ELEMENT.findall(prefer or ""):
        name, _, value = element.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            seconds = value.strip().strip('"')
            return float(seconds) if _SECONDS.fullmatch(seconds) else 0.0
    return 0.0


def _preference_applied(granted: MetadataRequest | None) -> Mapping[str, str]:
    return {} if granted is None else {"Preference-Applied": f"wait={granted.wait:g}"}


def _to_json(value: Any, path: str, depth: int) -> Any:
    """A deep copy of JSON types only: later changes of the caller's objects do not reach the published document."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"{path[:200]}... is nested deeper than {_MAX_DEPTH} levels, or contains itself")
    if isinstance(value, Mapping):
        return {
            _json_key(key, path): _to_json(item, f"{path}[{key!r}]", depth + 1) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_to_json(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, str):
        return _json_text(value, path)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path} is {value}, which JSON cannot represent; leave it out or use null")
    if value is None or isinstance(value, bool | int | float):
        return value
    raise TypeError(
        f"{path} is of type {type(value).__name__}, which JSON cannot represent; "
        "use str, int, float, bool, None, list or dict"
    )


def _json_key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{path} has the key {key!r} of type {type(key).__name__}; keys must be strings")
    return _json_text(key, f"{path}[{key!r}]")


def _json_text(text: str, path: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{path} is not Unicode text: it holds a lone surrogate") from error
    return text
