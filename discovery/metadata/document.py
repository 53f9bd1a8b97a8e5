"""A worker's metadata document as it arrives: what makes an answer acceptable, and how the document is read."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from discovery.errors import MetadataUnavailableError, WorkerUnreachableError
from discovery.instance import (
    INSTANCE_ID_HEADER,
    INSTANCE_INCARNATION_HEADER,
    INSTANCE_STATUS_HEADER,
    METADATA_LIMIT,
    Instance,
    InstanceStatus,
)

_ALIASES: Final = {"Model": "model", "Transport": "transport", "MDC": "mdc"}
_SPELLINGS: Final = _ALIASES | {small: capital for capital, small in _ALIASES.items()}
_ENTITY_TAG: Final = re.compile(r'(?:W/)?"([!#-~\xa0-\ud7ff\ue000-\U0010ffff]+)"')
"""RFC 9110 §8.8.3; what is no Unicode text, or would steer a terminal, is left out of its obs-text."""


class MetadataDict(dict[str, Any]):
    """A dict in which `Model`, `Transport` and `MDC` and their lower-case forms are read alike: workers send both."""

    def __missing__(self, key: str) -> Any:
        other = _SPELLINGS.get(key)
        if other is not None and dict.__contains__(self, other):
            return dict.__getitem__(self, other)
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self, key) or dict.__contains__(self, _SPELLINGS.get(str(key)))

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default


@dataclass(frozen=True, slots=True)
class MetadataDocument:
    """One metadata document as bytes. `etag` is what the worker calls its revision (unquoted), None if it sends none.

    `ready` is the worker's own `Instance-Status`; `verified` says that the answer named the expected instance.
    """

    body: bytes
    etag: str | None = None
    ready: bool = True
    verified: bool = False

    @property
    def revision(self) -> str | None:
        """The ETag, else a digest of the bytes, so that a change is seen; None for no document."""
        if self.etag is not None or self is NO_DOCUMENT:
            return self.etag
        return "sha256:" + hashlib.sha256(self.body).hexdigest()[:16]

    def metadata(self) -> dict[str, Any]:
        """The document, decoded anew: the caller may change it."""
        return MetadataDict(msgspec.json.decode(self.body, type=dict[str, Any]))


NO_DOCUMENT: Final = MetadataDocument(b"{}")
"""What a worker has that answers 404, 405 or 501: nothing to say, which is no fault."""


def read_document(instance: Instance, headers: Mapping[str, str], body: bytes) -> MetadataDocument:
    """The document in a 200 answer; MetadataUnavailableError when it is not this instance's document.

    `headers` is case-insensitive. Absent identity headers are accepted: any plain HTTP server may publish metadata.
    """
    verified = verify_identity(instance, headers)
    content_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise _unavailable(instance, f"content type {content_type or '(none)'!r}, expected application/json")
    if len(body) > METADATA_LIMIT:
        raise _unavailable(instance, f"more than {METADATA_LIMIT} bytes")
    document = MetadataDocument(body, read_etag(headers), read_ready(headers), verified)
    read_metadata(instance, document)
    return document


def read_metadata(instance: Instance, document: MetadataDocument) -> dict[str, Any]:
    """The document, decoded anew; MetadataUnavailableError when it is no JSON object, or nests too deeply.

    How deep is too deep follows from the caller's own stack: what could be read once may fail elsewhere.
    """
    try:
        return document.metadata()
    except RecursionError as error:
        raise _unavailable(instance, "not a JSON object that can be read: it is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _unavailable(instance, f"not a JSON object ({error})") from error


def verify_identity(instance: Instance, headers: Mapping[str, str]) -> bool:
    """True when the answer names the expected instance, False when it names none; raises when it names another one.

    An address is reused: the answer may come from a worker that took the place of the expected one. A source that
    knows addresses only (incarnation "") expects nobody in particular.
    """
    if not instance.incarnation:
        return False
    named = headers.get(INSTANCE_ID_HEADER)
    incarnation = headers.get(INSTANCE_INCARNATION_HEADER)
    if named is not None and named != instance.id:
        raise _not_this(instance, f"the answer is of instance {named!r}, expected {instance.id!r}")
    if incarnation is not None and incarnation != instance.incarnation:
        raise _not_this(
            instance, f"the answer is of incarnation {incarnation!r}, expected {instance.incarnation!r}"
        )
    return named is not None and incarnation is not None


def read_etag(headers: Mapping[str, str]) -> str | None:
    """The entity tag without its quotes; a weak one counts like a strong one. None for none, and for one that RFC
    9110 §8.8.3 does not allow: it could not be sent back.
    """
    found = _ENTITY_TAG.fullmatch(headers.get("ETag", "").strip())
    return found[1] if found else None


def read_ready(headers: Mapping[str, str]) -> bool:
    """Whether the worker calls itself ready; a worker that says nothing, or a word we do not know, is."""
    status = headers.get(INSTANCE_STATUS_HEADER)
    return status not in (InstanceStatus.NOT_READY, InstanceStatus.DRAINING)


def _unavailable(instance: Instance, reason: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(instance.id, instance.authority, reason, connected=True)


def _not_this(instance: Instance, reason: str) -> WorkerUnreachableError:
    return WorkerUnreachableError(instance.id, instance.authority, reason, connected=True)
