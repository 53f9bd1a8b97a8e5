"""Reads batches of KV events, as vLLM, SGLang and TensorRT-LLM publish them (msgpack, `[ts, events, rank]`).

An event is a map with its name under `type`, or, from older workers, an array that begins with its name. Sources: vLLM 0.33,
vllm/distributed/kv_events.py; SGLang 0.5.23, disaggregation/kv_events.py; TensorRT-LLM, _torch/pyexecutor/kv_cache_events.py.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw, Struct

MOST_BYTES: Final = 16 * 1024 * 1024
"""Of one batch. A worker that computes a prompt of a million tokens sends about 5 MB."""
_MOST_EVENTS: Final = 65_536
_MOST_HASHES: Final = 1_048_576
"""Of one event."""
_MOST_TOKENS: Final = 4_194_304
"""Of one event."""
_MOST_EXTRA: Final = 4096
"""Bytes of the extra keys of one block."""
_MOST_TOKEN: Final = 0xFFFF_FFFF
_HASH_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_MOST_TEXT: Final = 512
"""Characters of a name or a salt."""

Scope: TypeAlias = tuple[str, int, str, str]
"""What references are counted for: medium in lower case, group, locality, ownership."""
Extras: TypeAlias = bytes
"""What a block's hash covers beside its tokens; empty: nothing."""

GPU: Final = "gpu"
HOST: Final = "host"
_MOST_WORD: Final = 64
_DEVICE_MEDIA: Final = frozenset({GPU, "device"})
_HOST_MEDIA: Final = frozenset({"CPU", "CPU_PINNED", "CPU_TIER1"})
"""As written. Mooncake's store says `cpu`: it holds blocks outside of the worker and never removes them."""
_WHOLE_PREFIX_KINDS: Final = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of groups whose blocks are all needed. Groups of other kinds name only some blocks of a prompt."""


class BlocksStored(NamedTuple):
    """The worker can use these blocks. `parent` None: they begin a prompt. `block_size` 0: `tokens` are not known.

    `extras`: of each block, empty if no block has any. `adapter`: its name, or what stands for it; None: the base model.
    `salt`: of the whole prompt. `whole`: of a group whose every block is needed.
    """

    scope: Scope
    hashes: Sequence[int]
    parent: int | None = None
    tokens: Sequence[int] = ()
    block_size: int = 0
    adapter: str | None = None
    salt: str = ""
    extras: Sequence[Extras] = ()
    whole: bool = True


class BlocksRemoved(NamedTuple):
    scope: Scope
    hashes: Sequence[int]


class BlocksCleared(NamedTuple):
    """The worker holds nothing any more."""


KvEvent: TypeAlias = BlocksStored | BlocksRemoved | BlocksCleared


class KvBatch(NamedTuple):
    """`time`: when it was sent, in seconds of the worker's clock. `unknown`: events of other types. `faulty`: events that cannot be read."""

    time: float
    events: list[KvEvent]
    unknown: int = 0
    faulty: int = 0


class BatchError(ValueError):
    """The payload is no batch of events; the text says why."""


def read_batch(payload: bytes) -> KvBatch:
    """Raises BatchError. An event that is unknown or cannot be read takes no other event with it."""
    if len(payload) > MOST_BYTES:
        raise BatchError(f"has {len(payload):,} bytes; expected at most {MOST_BYTES:,}")
    try:
        time, listed = _envelope(payload)
        events, unknown, faulty = list[KvEvent](), 0, 0
        for raw in _elements(listed, _MOST_EVENTS):
            try:
                event = _read_event(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
                faulty += 1
                continue
            if event is None:
                unknown += 1
            else:
                events.append(event)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BatchError(f"is not msgpack of [ts, events, ...]: {str(error)[:200]}") from error
    return KvBatch(time, events, unknown, faulty)


class _MapBatch(Struct):
    ts: float
    events: Raw


class _ArrayBatch(Struct, array_like=True):
    """There may be more: the rank, and what newer workers append."""

    ts: float
    events: Raw


class _MapEvent(Struct):
    """All fields of all events."""

    type: str
    block_hashes: Raw = Raw(b"")
    parent_block_hash: int | bytes | None = None
    token_ids: Raw = Raw(b"")
    block_size: int | None = None
    lora_id: int | str | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Raw = Raw(b"")
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None
    ownership: str | None = None
    cache_salt: str | None = None
    mm_keys: Raw = Raw(b"")


class _Named(Struct, array_like=True):
    type: str


class _StoredArray(Struct, array_like=True):
    type: str
    block_hashes: Raw = Raw(b"")
    parent_block_hash: int | bytes | None = None
    token_ids: Raw = Raw(b"")
    block_size: int | None = None
    lora_id: int | str | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Raw = Raw(b"")
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None


class _RemovedArray(Struct, array_like=True):
    type: str
    block_hashes: Raw = Raw(b"")
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


_MAP_BATCH: Final = msgspec.msgpack.Decoder(_MapBatch)
_ARRAY_BATCH: Final = msgspec.msgpack.Decoder(_ArrayBatch)
_MAP_EVENT: Final = msgspec.msgpack.Decoder(_MapEvent)
_NAMED: Final = msgspec.msgpack.Decoder(_Named)
_STORED_ARRAY: Final = msgspec.msgpack.Decoder(_StoredArray)
_REMOVED_ARRAY: Final = msgspec.msgpack.Decoder(_RemovedArray)
_RAWS: Final = msgspec.msgpack.Decoder(list[Raw])
_HASHES: Final = msgspec.msgpack.Decoder(list[int | bytes])
_TOKENS: Final = msgspec.msgpack.Decoder(list[int])
_PAIRS: Final = msgspec.msgpack.Decoder(list[tuple[int, int]])
_EXTRA: Final = msgspec.msgpack.Decoder(list[Any] | None)


class _MmKey(Struct):
    hash: str
    start_offset: int = 0


_MM_KEYS: Final = msgspec.msgpack.Decoder(list[_MmKey] | None)
_ENCODER: Final = msgspec.msgpack.Encoder()


def _envelope(payload: bytes) -> tuple[float, Raw]:
    decoder = _MAP_BATCH if _is_map(payload) else _ARRAY_BATCH
    batch = decoder.decode(payload)
    return batch.ts, batch.events


def _is_map(data: bytes) -> bool:
    first = data[0] if data else 0xC0
    return first & 0xF0 == 0x80 or first in (0xDE, 0xDF)


def _elements(raw: Raw, most: int) -> list[Raw]:
    """The elements of an array, whose number is read first: each takes more memory than it has bytes."""
    _check_length(bytes(memoryview(raw)[:5]), most)
    return _RAWS.decode(raw)


def _check_length(head: bytes, most: int) -> None:
    first = head[0] if head else 0xC0
    if first in (0xDC, 0xDD):
        length = int.from_bytes(head[1 : 3 if first == 0xDC else 5], "big")
        if length > most:
            raise msgspec.ValidationError(f"an array of {length:,} elements; expected at most {most:,}")


def _read_event(raw: Raw) -> KvEvent | None:
    data = memoryview(raw)
    if _is_map(bytes(data[:1])):
        event = _MAP_EVENT.decode(data)
        if event.type == "BlockStored":
            return _stored(event, event.cache_salt or "", event.mm_keys)
        return _other(event) if event.type in _OTHERS else None
    kind = _NAMED.decode(data).type
    if kind == "BlockStored":
        return _stored(_STORED_ARRAY.decode(data), "", Raw(b""))
    return _other(_REMOVED_ARRAY.decode(data)) if kind in _OTHERS else None


_OTHERS: Final = ("BlockRemoved", "AllBlocksCleared")


def _other(event: _MapEvent | _RemovedArray) -> KvEvent:
    if event.type == "AllBlocksCleared":
        return BlocksCleared()
    return BlocksRemoved(_scope(event), _hashes(event.block_hashes))


def _stored(event: _MapEvent | _StoredArray, salt: str, mm_keys: Raw) -> BlocksStored:
    hashes, tokens = _hashes(event.block_hashes), _tokens(event.token_ids)
    size = event.block_size or 0
    parent = None if event.parent_block_hash is None else _hash(event.parent_block_hash)
    adapter = _text(event.lora_name)
    if adapter is None and event.lora_id:
        adapter = f"\0{event.lora_id}"[:_MOST_TEXT]  # no client can name it
    whole = event.kv_cache_spec_kind in _WHOLE_PREFIX_KINDS
    # the last block may be short; a group that names fewer blocks than its tokens fill teaches nothing
    fits = size > 0 and len(hashes) > 0 and (len(hashes) - 1) * size < len(tokens) <= len(hashes) * size
    if not fits:
        return BlocksStored(_scope(event), hashes, parent, whole=whole)
    extras = _extras(event.extra_keys, adapter, len(hashes)) or _mm_extras(mm_keys, len(hashes))
    text = _text(salt) or ""
    if parent is None and extras and not text:
        text, extras = _split_salt(extras)
    return BlocksStored(
        _scope(event),
        hashes,
        parent,
        tokens,
        size,
        adapter,
        text,
        tuple([extra for _, extra in extras]),
        whole,
    )


def _scope(event: _MapEvent | _StoredArray | _RemovedArray) -> Scope:
    medium = event.medium or GPU
    if medium in _HOST_MEDIA:
        medium = HOST
    elif (medium := medium.lower()[:_MOST_WORD]) in _DEVICE_MEDIA:
        medium = GPU
    locality, ownership = event.locality or "", event.ownership or ""
    return medium, event.group_idx or 0, locality.upper()[:_MOST_WORD], ownership[:_MOST_WORD]


def is_local(scope: Scope) -> bool:
    """Whether a block in this scope is in the worker's own memory, from which it removes what it says it removes."""
    return scope[0] in (GPU, HOST) and scope[2] != "REMOTE"


def _hashes(raw: Raw) -> list[int]:
    if not memoryview(raw).nbytes:
        raise msgspec.ValidationError("an event without block_hashes")
    _check_length(bytes(memoryview(raw)[:5]), _MOST_HASHES)
    return [_hash(one) for one in _HASHES.decode(raw)]


def _hash(value: int | bytes) -> int:
    """64 bits: workers send them signed, unsigned or as the digest, whose last bytes they are."""
    number = value if isinstance(value, int) else int.from_bytes(value[-8:], "big")
    return number & _HASH_MASK


def _tokens(raw: Raw) -> list[int]:
    """Of pairs, which SGLang sends for EAGLE, the first ones."""
    if not memoryview(raw).nbytes or bytes(memoryview(raw)[:1]) == b"\xc0":
        return []
    _check_length(bytes(memoryview(raw)[:5]), _MOST_TOKENS)
    try:
        tokens = _TOKENS.decode(raw)
    except msgspec.ValidationError:
        tokens = [first for first, _ in _PAIRS.decode(raw)]
    if tokens and not (min(tokens) >= 0 and max(tokens) <= _MOST_TOKEN):
        raise msgspec.ValidationError("a token outside of 32 bits")
    return tokens


def _text(value: str | None) -> str | None:
    if not value:
        return None
    if len(value) > _MOST_TEXT:
        raise msgspec.ValidationError("a name or salt that is too long")
    return value


_Extra: TypeAlias = tuple[str, Extras]
"""The text in a block's extra keys that may be a salt, and all of them as bytes."""


def _extras(raw: Raw, adapter: str | None, count: int) -> list[_Extra]:
    """vLLM's extra keys of each block, without the adapter's name, which stands in a field of its own."""
    if not memoryview(raw).nbytes or bytes(memoryview(raw)[:1]) == b"\xc0":
        return []
    found: list[_Extra] = []
    for block in _elements_of_blocks(raw, count):
        keys = [key for key in _EXTRA.decode(block) or () if key != adapter]
        texts = [key for key in keys if isinstance(key, str)]
        found.append(
            (texts[0] if len(keys) == len(texts) == 1 else "", _ENCODER.encode(keys) if keys else b"")
        )
    return found if any(extra for _, extra in found) else []


def _elements_of_blocks(raw: Raw, count: int) -> list[Raw]:
    _check_length(bytes(memoryview(raw)[:5]), _MOST_HASHES)
    blocks = _RAWS.decode(raw)
    if len(blocks) != count:
        raise msgspec.ValidationError(f"extra keys of {len(blocks)} blocks; expected {count}")
    if max(memoryview(block).nbytes for block in blocks) > _MOST_EXTRA:
        raise msgspec.ValidationError(f"extra keys of a block over {_MOST_EXTRA} bytes")
    return blocks


def _mm_extras(raw: Raw, count: int) -> list[_Extra]:
    """TensorRT-LLM's multimodal keys of each block."""
    if not memoryview(raw).nbytes or bytes(memoryview(raw)[:1]) == b"\xc0":
        return []
    found = list[_Extra]()
    for block in _elements_of_blocks(raw, count):
        keys = [(key.hash, key.start_offset) for key in _MM_KEYS.decode(block) or ()]
        found.append(("", _ENCODER.encode(keys) if keys else b""))
    return found if any(extra for _, extra in found) else []


def _split_salt(extras: list[_Extra]) -> tuple[str, list[_Extra]]:
    """A salt is the only text in the extra keys of a prompt's first block (vLLM, generate_block_hash_extra_keys)."""
    salt = extras[0][0]
    if not salt:
        return "", extras
    rest = [("", b""), *extras[1:]]
    return salt, rest if any(extra for _, extra in rest) else []
