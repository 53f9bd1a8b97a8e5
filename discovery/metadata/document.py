"""Validates the answers of `/metadata`, decodes the documents in them, and reads the port that serves requests. Pure."""

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
"""`entity-tag` of RFC 9110 §8.8.3. Surrogates and C1 controls of its obs-text are excluded: revisions are printed."""

_FIRST_USER_PORT: Final = 1024
"""Ports below are system ports (RFC 6335 §6): mail, remote shells. No document may direct requests there."""


MOST_PORT: Final = 65535
MOST_RANKS: Final = 64
"""Data-parallel ranks of one worker, each with a socket of its own."""


class MetadataDict(dict[str, Any]):
    """A dict in which `Model`, `Transport` and `MDC` are found by their lower-case forms too, and the reverse."""

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
    """One metadata document as bytes. `etag`: without quotes and `W/`; None if the worker sends none.

    `ready`: from `Instance-Status`. `verified`: the headers named the expected instance and incarnation.
    """

    body: bytes
    etag: str | None = None
    ready: bool = True
    verified: bool = False

    @property
    def revision(self) -> str | None:
        """The ETag, else a digest of the bytes, so that changes show without ETags; None for `NO_DOCUMENT`."""
        if self.etag is not None or self is NO_DOCUMENT:
            return self.etag
        return "sha256:" + hashlib.sha256(self.body).hexdigest()[:16]

    def metadata(self) -> dict[str, Any]:
        """A new dict at each call: the caller may change it."""
        return MetadataDict(msgspec.json.decode(self.body, type=dict[str, Any]))


NO_DOCUMENT: Final = MetadataDocument(b"{}")
"""For workers that answer 404, 405 or 501: a plain model server has no such page, which is not an error."""


def read_document(instance: Instance, headers: Mapping[str, str], body: bytes) -> MetadataDocument:
    """The document in a 200 answer. Raises MetadataUnavailableError if it is not this instance's valid document.

    `headers` is case-insensitive. Identity headers may be absent: any plain HTTP server may publish metadata.
    """
    verified = verify_identity(instance, headers)
    content_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    # `+json`: any type that is encoded as JSON (RFC 6839)
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise _unavailable(instance, f"content type {content_type or '(none)'!r}, expected application/json")
    if len(body) > METADATA_LIMIT:
        raise _unavailable(instance, f"more than {METADATA_LIMIT} bytes")
    document = MetadataDocument(body, read_etag(headers), read_ready(headers), verified)
    read_metadata(instance, document)
    return document


def read_metadata(instance: Instance, document: MetadataDocument) -> dict[str, Any]:
    """A new dict. Raises MetadataUnavailableError if the document is not a JSON object, or nests too deeply.

    The decoder recurses on the caller's stack: a document that was accepted once can be too deep in a deeper call.
    """
    try:
        return document.metadata()
    except RecursionError as error:
        raise _unavailable(instance, "not a JSON object that can be read: it is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _unavailable(instance, f"not a JSON object ({error})") from error


def verify_identity(instance: Instance, headers: Mapping[str, str]) -> bool:
    """True if the headers name this instance, False if they name none; raises WorkerUnreachableError if another one.

    Addresses are reused: the answer may come from the Pod that has the address now. A source that knows only
    addresses (incarnation "") cannot verify.
    """
    if not instance.incarnation:
        return False
    named = headers.get(INSTANCE_ID_HEADER)
    incarnation = headers.get(INSTANCE_INCARNATION_HEADER)
    if named is not None and named != instance.registered_id:
        raise _other_instance(
            instance, f"the answer is of instance {named!r}, expected {instance.registered_id!r}"
        )
    if incarnation is not None and incarnation != instance.registered_incarnation:
        raise _other_instance(
            instance,
            f"the answer is of incarnation {incarnation!r}, expected {instance.registered_incarnation!r}",
        )
    return named is not None and incarnation is not None


def read_etag(headers: Mapping[str, str]) -> str | None:
    """The entity tag without its quotes and `W/`: If-None-Match compares weakly (RFC 9110 §13.1.2).

    None if it is absent, or is not a valid entity tag (§8.8.3) and could not be sent back.
    """
    found = _ENTITY_TAG.fullmatch(headers.get("ETag", "").strip())
    return found[1] if found else None


def read_ready(headers: Mapping[str, str]) -> bool:
    """False for `not_ready` and `draining`. An absent or unknown status is ready: the source decided on readiness."""
    status = headers.get(INSTANCE_STATUS_HEADER)
    return status not in (InstanceStatus.NOT_READY, InstanceStatus.DRAINING)


def read_port(value: object) -> int | None:
    """A port from 1 to 65535, given as an int or in ASCII digits; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 5:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_PORT:
        return value
    return None


def may_name(instance: Instance, port: int) -> bool:
    """Whether the instance's document may name this port: any from 1024 on, and those that its source lists."""
    return port >= _FIRST_USER_PORT or port == instance.port or port in instance.ports.values()


def serving_port(instance: Instance, document: Mapping[str, Any]) -> int | None:
    """`transport.http.port`, or `Transport.http.port`; None where there is none or the document may not name it."""
    if instance.rank is not None:
        return None  # one document may describe all ranks of a Pod: who selected them names the port of each
    transport = document.get("transport") or document.get("Transport")
    http = transport.get("http") if isinstance(transport, Mapping) else None
    port = read_port(http.get("port")) if isinstance(http, Mapping) else None
    return port if port is not None and may_name(instance, port) else None


def _unavailable(instance: Instance, reason: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(instance.id, instance.authority, reason, connected=True)


def _other_instance(instance: Instance, reason: str) -> WorkerUnreachableError:
    return WorkerUnreachableError(instance.id, instance.authority, reason, connected=True)
