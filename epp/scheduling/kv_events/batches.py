"""Reads batches of KV events, as vLLM, SGLang and TensorRT-LLM publish them (msgpack, `[ts, events, rank]`).

An event is a map with its name under `type`, or, from older workers, an array that begins with its name. Sources: vLLM 0.33,
vllm/distributed/kv_events.py; SGLang 0.5.23, disaggregation/kv_events.py; TensorRT-LLM, _torch/pyexecutor/kv_cache_events.py.
"""

from array import array
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Work that may be long, in pieces of about a millisecond: others have their turn between them. It returns its result."""

MOST_BYTES: Final = 8 * 1024 * 1024
"""One batch is no larger. A worker that computes a prompt of a million tokens sends about 5 MB."""
_PIECE: Final = 16_384
"""Numbers that are decoded in one go."""
_MOST_EVENTS: Final = 65_536
_MOST_HASHES: Final = 262_144
_MOST_TOKENS: Final = 4_194_304
"""Both in one event."""
_MOST_EXTRA: Final = 4096
"""Bytes of the extra keys of one block."""
_HASH_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_MOST_TEXT: Final = 512
"""Characters of a name or a salt."""

Scope: TypeAlias = tuple[str, int, str, str]
"""References are counted for each: medium in lower case, group, locality, ownership."""
Extras: TypeAlias = bytes
"""A block's hash covers these beside its tokens; empty: nothing."""

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
    """`time`: when it was sent, in seconds of the worker's clock. `unknown`: events of other types. `faulty`: events that
    cannot be read.
    """

    time: float
    events: list[KvEvent]
    unknown: int = 0
    faulty: int = 0


class BatchError(ValueError):
    """The payload is no batch of events; the text says why."""


def batch_steps(payload: bytes) -> Steps[KvBatch]:
    """Raises BatchError. An event that is unknown or cannot be read takes no other event with it."""
    time, listed = _envelope(payload)
    events, unknown, faulty = list[KvEvent](), 0, 0
    yield  # each of these passes over all bytes takes up to 10 ms
    try:
        raws = _elements(listed, _MOST_EVENTS)
    except msgspec.MsgspecError as error:
        raise _no_batch(error) from error
    for raw in raws:
        yield
        try:
            event = yield from _read_event(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
            faulty += 1
            continue
        if event is None:
            unknown += 1
        else:
            events.append(event)
    return KvBatch(time, events, unknown, faulty)


def sent_at(payload: bytes) -> float:
    """The time of a batch. Raises BatchError."""
    return _envelope(payload)[0]


class _MapBatch(Struct):
    ts: float
    events: Raw


class _ArrayBatch(Struct, array_like=True):
    """There may be more: the rank, and what newer workers append."""

    ts: float
    events: Raw


class _Stored(Struct):
    """In the order of an array."""

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
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None


class _MapEvent(_Stored):
    """All fields of all events. No array has these two."""

    cache_salt: str | None = None
    mm_keys: Raw = Raw(b"")


class _StoredArray(_Stored, array_like=True):
    pass


class _Named(Struct, array_like=True):
    type: str


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
    if len(payload) > MOST_BYTES:
        raise BatchError(f"has {len(payload):,} bytes; expected at most {MOST_BYTES:,}")
    decoder = _MAP_BATCH if _is_map(payload) else _ARRAY_BATCH
    try:
        batch = decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _no_batch(error) from error
    return batch.ts, batch.events


def _no_batch(error: Exception) -> BatchError:
    return BatchError(f"is not msgpack of [ts, events, ...]: {str(error)[:200]}")


def _is_map(data: bytes) -> bool:
    first = data[0] if data else 0xC0
    return first & 0xF0 == 0x80 or first in (0xDE, 0xDF)


def _elements(raw: Raw, most: int) -> list[Raw]:
    """The elements of an array, whose number is read first: each takes more memory than it has bytes."""
    _length(memoryview(raw), most)
    return _RAWS.decode(raw)


def _length(data: memoryview, most: int) -> tuple[int, int]:
    """How many elements an array has, and where they begin."""
    head = bytes(data[:5])
    first = head[0] if head else 0xC0
    if first & 0xF0 == 0x90:
        return first & 0x0F, 1
    if first not in (0xDC, 0xDD):
        raise msgspec.ValidationError("no array")
    begin = 3 if first == 0xDC else 5
    length = int.from_bytes(head[1:begin], "big")
    if length > most:
        raise msgspec.ValidationError(f"an array of {length:,} elements; expected at most {most:,}")
    return length, begin


_SIZES: Final = bytes(
    # by the first byte, what a number takes: fixint, uint and int of 8, 16, 32 and 64 bits; 0: it is none
    {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}.get(
        first, int(first < 0x80 or first >= 0xE0)
    )
    for first in range(256)
)


def _pieces(raw: Raw, most: int) -> Iterator[memoryview | bytes]:
    """An array as several shorter ones. Its elements are numbers, pairs of them, or short bytes."""
    data = memoryview(raw)
    left, at = _length(data, most)
    if left <= _PIECE:
        yield data
        return
    while left:
        begin, count = at, min(left, _PIECE)
        for _ in range(count):
            at += _SIZES[data[at]] or _size_of_other(data, at)
        left -= count
        yield b"\xdd" + count.to_bytes(4, "big") + data[begin:at]


def _size_of_other(data: memoryview, at: int) -> int:
    if data[at] == 0xC4:
        return 2 + data[at + 1]
    if data[at] == 0x92 and (one := _SIZES[data[at + 1]]) and (other := _SIZES[data[at + 1 + one]]):
        return 1 + one + other
    raise msgspec.ValidationError("an array of other things")


def _read_event(raw: Raw) -> Steps[KvEvent | None]:
    data = memoryview(raw)
    event: _MapEvent | _StoredArray | _RemovedArray
    if _is_map(bytes(data[:1])):
        event = _MAP_EVENT.decode(data)
        kind = event.type
    elif (kind := _NAMED.decode(data).type) not in _KINDS:
        return None
    else:
        event = (_STORED_ARRAY if kind == "BlockStored" else _REMOVED_ARRAY).decode(data)
    yield
    if isinstance(event, _Stored) and kind == "BlockStored":
        return (yield from _stored(event))
    if kind == "BlockRemoved":
        return BlocksRemoved(_scope(event), (yield from _hashes(event.block_hashes)))
    return BlocksCleared() if kind == "AllBlocksCleared" else None


_KINDS: Final = ("BlockStored", "BlockRemoved", "AllBlocksCleared")


def _stored(event: _Stored) -> Steps[BlocksStored]:
    hashes = yield from _hashes(event.block_hashes)
    tokens = yield from _tokens(event.token_ids)
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
    extras, text = _extras(event.extra_keys, adapter, len(hashes)), ""
    if isinstance(event, _MapEvent):
        extras, text = extras or _mm_extras(event.mm_keys, len(hashes)), _text(event.cache_salt) or ""
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


def _scope(event: _Stored | _RemovedArray) -> Scope:
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


def _hashes(raw: Raw) -> "Steps[array[int]]":
    if not memoryview(raw).nbytes:
        raise msgspec.ValidationError("an event without block_hashes")
    found = array("Q")
    for piece in _pieces(raw, _MOST_HASHES):
        found.extend([_hash(one) for one in _HASHES.decode(piece)])
        yield
    return found


def _hash(value: int | bytes) -> int:
    """64 bits: workers send them signed, unsigned or as the digest, whose last bytes they are."""
    number = value if isinstance(value, int) else int.from_bytes(value[-8:], "big")
    return number & _HASH_MASK


def _tokens(raw: Raw) -> "Steps[array[int]]":
    """The first ones of pairs, which SGLang sends for EAGLE."""
    found = array("I")
    if not memoryview(raw).nbytes or bytes(memoryview(raw)[:1]) == b"\xc0":
        return found
    for piece in _pieces(raw, _MOST_TOKENS):
        try:
            found.extend(_TOKENS.decode(piece))
        except msgspec.ValidationError:
            found.extend([first for first, _ in _PAIRS.decode(piece)])
        yield
    return found


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
    blocks = _elements(raw, _MOST_HASHES)
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
