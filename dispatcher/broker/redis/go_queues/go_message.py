"""Which Redis lists a message may name for its result (pure).

A Go producer names the list in its message. Without rules, anyone who may submit could have results pushed onto any list
key of the Redis: a queue of another program, or a sorted set that is empty at the moment and would become a list.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from adsum.quoting import quoted
from dispatcher.broker.contract.message import Request
from dispatcher.broker.contract.queue import QueueRules
from dispatcher.broker.contract.validation import LONGEST_ID, check_request, is_valid_tenant

RESERVED_PREFIXES: Final = ("adsum:", "request-active:", "request-cancel:")
"""Prefixes of our own keys, and of those in which Go producers mark active and cancelled requests."""
LONGEST_LIST_NAME: Final = 512
"""Bytes."""


@dataclass(frozen=True, slots=True)
class ResultLists:
    """`intakes`: keys that messages are read from. `allowed`: the only names a message may use; empty: any other."""

    intakes: frozenset[str] = frozenset()
    allowed: Collection[str] = ()

    def refusal(self, name: str) -> str:
        """Why a result may not go to this list; empty if it may."""
        shown = ascii(name[:80])
        if name in self.intakes:
            return f"result_queue_name is {shown}, which is an intake; expected a list for results"
        if name.startswith(RESERVED_PREFIXES):
            return f"result_queue_name is {shown}, and that prefix is reserved; expected a list for results"
        if self.allowed and name not in self.allowed:
            return f"result_queue_name is {shown}; expected one of {', '.join(map(ascii, self.allowed))}"
        if len(name.encode(errors="replace")) > LONGEST_LIST_NAME:
            return f"result_queue_name has more than {LONGEST_LIST_NAME} bytes; use a shorter one"
        return ""


ANY_LIST: Final = ResultLists()
"""Every list but those in use."""


DEFAULT_LIST: Final = "result-list"
"""The list that the Go processor pushes results to if neither queue nor message names one."""
KINDS: Final = ("plain", "redis", "pubsub")


class _Internal(msgspec.Struct):
    request_token: str = ""
    result_queue_name: str = ""


class _Data(msgspec.Struct):
    id: str
    deadline: int
    payload: msgspec.Raw = msgspec.Raw(b"")
    created: int = 0
    metadata: Mapping[str, str] | None = None
    headers: Mapping[str, str] | None = None
    endpoint: str = ""
    result_queue_name: str = ""


class _Envelope(msgspec.Struct):
    request_kind: str
    data: _Data
    internal: _Internal = msgspec.field(default_factory=_Internal)


_decoder = msgspec.json.Decoder(_Envelope)


@dataclass(frozen=True, slots=True)
class GoMessage:
    """A request, and the list that its result is pushed to; empty: results are leased."""

    request: Request
    result_list: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message that is not a request; with its id and token if they can be read."""

    reason: str
    id: str | None
    token: str
    result_list: str


def parse(
    member: bytes, rules: QueueRules, tenant_attribute: str, lists: ResultLists = ANY_LIST
) -> GoMessage | Malformed:
    """Parse one member of the sorted set. Its times are whole seconds.

    The payload keeps the bytes of the message: decoding and encoding it again would change its spaces and numbers.
    """
    try:
        envelope = _decoder.decode(member)
        request = _request(envelope, member, tenant_attribute)
        check_request(request, rules)
        result_list = _result_list(envelope, rules, lists)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return _malformed(member, str(error), rules, lists)
    return GoMessage(request, result_list)


def _request(envelope: _Envelope, member: bytes, tenant_attribute: str) -> Request:
    data = envelope.data
    if envelope.request_kind not in KINDS:
        kind = quoted(envelope.request_kind)
        raise ValueError(f"request_kind is {kind}, expected one of {', '.join(KINDS)}")
    if data.deadline <= 0:
        raise ValueError(f"deadline is {data.deadline}, expected Unix seconds")
    payload = bytes(data.payload)
    if payload in (b"", b"null"):
        raise ValueError(
            "there is no payload in the message; expected it in data.payload, payloads stored elsewhere are not fetched"
        )
    metadata = dict(data.metadata or {})
    tenant = metadata.get(tenant_attribute, "")
    return Request(
        data.id,
        payload,
        data.deadline * 1000,
        tenant=tenant if is_valid_tenant(tenant) else "default",
        path=data.endpoint,
        headers=dict(data.headers or {}),
        metadata=metadata,
        created_ms=max(0, data.created) * 1000,
        token=envelope.internal.request_token or _token_of(member),
    )


def _token_of(member: bytes) -> str:
    """A token for a message without one: its hash, so that every replica derives the same."""
    return hashlib.sha256(member).hexdigest()[:32]


def _result_list(envelope: _Envelope, rules: QueueRules, lists: ResultLists) -> str:
    """The list of the queue's rules, else of the message, else the default. ValueError if the message may not name it."""
    named = envelope.internal.result_queue_name or envelope.data.result_queue_name
    if rules.result_list != DEFAULT_LIST or not named:
        return rules.result_list
    if refusal := lists.refusal(named):
        raise ValueError(refusal)
    return named


def _malformed(member: bytes, reason: str, rules: QueueRules, lists: ResultLists) -> Malformed:
    try:
        found = msgspec.json.decode(member)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        found = None
    id = _text(found, "data", "id")
    named = _text(found, "internal", "result_queue_name") or _text(found, "data", "result_queue_name")
    token = _text(found, "internal", "request_token") or _token_of(member)
    may = rules.result_list == DEFAULT_LIST and named and not lists.refusal(named)
    readable = id is not None and 0 < len(id.encode(errors="replace")) <= LONGEST_ID
    return Malformed(reason, id if readable else None, token, named if may and named else rules.result_list)


def _text(found: object, *path: str) -> str | None:
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None
