"""KV events as workers encode them: the classes of vLLM, SGLang and TensorRT-LLM, with the options that decide what is on the wire.

vLLM 0.33 (distributed/kv_events.py), SGLang 0.5.23 (disaggregation/kv_events.py), TensorRT-LLM (_torch/pyexecutor/kv_cache_events.py),
and the array forms of vLLM before PR 42892 and of SGLang before it followed.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec


class Event(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class VllmBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class FullBatch(msgspec.Struct, array_like=True):
    """SGLang and TensorRT-LLM always name the rank."""

    ts: float
    events: list[Any]
    attn_dp_rank: int | None = None


class BlockStored(Event, tag="BlockStored"):
    """vLLM."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[int] | None = None


class BlockRemoved(Event, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(Event, tag="AllBlocksCleared"):
    pass


class OldStored(msgspec.Struct, array_like=True, omit_defaults=True, tag="BlockStored"):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    lora_name: str | None = None


class OldRemoved(msgspec.Struct, array_like=True, omit_defaults=True, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None = None


class OldCleared(msgspec.Struct, array_like=True, omit_defaults=True, tag="AllBlocksCleared"):
    pass


class SglangStored(Event, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[Any]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    lora_name: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None


class TrtllmStored(Event, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[Any]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    mm_keys: list[Any] | None = None


_ENCODE = msgspec.msgpack.Encoder().encode


def vllm(*events: Any, ts: float = 1.0, rank: int | None = None) -> bytes:
    return _ENCODE(VllmBatch(ts, list(events), rank))


def full(*events: Any, ts: float = 1.0) -> bytes:
    return _ENCODE(FullBatch(ts, list(events), 0))


def stored(
    hashes: list[Any], tokens: list[int], parent: Any = None, size: int = 16, **more: Any
) -> BlockStored:
    """As vLLM does without adapters."""
    given = {"lora_id": None, "medium": "GPU", "lora_name": None} | more
    return BlockStored(hashes, parent, tokens, size, **given)


def removed(*hashes: Any, medium: str = "GPU", **more: Any) -> BlockRemoved:
    return BlockRemoved(list(hashes), medium, **more)


class KvFormat(StrEnum):
    """Whose messages, as maps; the old ones as arrays."""

    VLLM = "vllm"
    VLLM_OLD = "vllm-old"
    SGLANG = "sglang"
    SGLANG_OLD = "sglang-old"
    TRTLLM = "trtllm"


_SIGNED = (KvFormat.SGLANG, KvFormat.SGLANG_OLD)


def block_name(format: KvFormat, digest: bytes) -> int:
    """What a worker calls a block: the last 64 bits of its digest, of SGLang the first, which it takes as signed."""
    return int.from_bytes(digest[:8] if format in _SIGNED else digest[-8:], "big", signed=format in _SIGNED)


def stored_event(
    format: KvFormat,
    names: Sequence[int],
    tokens: Sequence[int],
    parent: int | None,
    adapter: str | None,
    salt: str,
) -> Any:
    """Blocks of equal size; `salt`: said where it begins a prompt."""
    size, hashes = len(tokens) // len(names), list[Any](names)
    given: dict[str, Any] = {"lora_id": None, "medium": "GPU", "lora_name": adapter}
    salted = [*([adapter] if adapter else []), salt] if salt and parent is None else None
    if format is KvFormat.VLLM_OLD:
        return OldStored(hashes, parent, list(tokens), size, **given)
    if format is KvFormat.SGLANG_OLD:
        return OldStored(hashes, parent, list(tokens), size, lora_id=None, medium="GPU")
    if format is KvFormat.SGLANG:
        return SglangStored(hashes, parent, list(tokens), size, **given, cache_salt=salt or None)
    extra = None if salted is None else [salted, *[None] * (len(hashes) - 1)]
    if format is KvFormat.TRTLLM:
        return TrtllmStored(hashes, parent, list(tokens), size, **given, extra_keys=extra)
    return BlockStored(hashes, parent, list(tokens), size, **given, extra_keys=extra)


def removed_event(format: KvFormat, names: Sequence[int]) -> Any:
    if format in (KvFormat.VLLM_OLD, KvFormat.SGLANG_OLD):
        return OldRemoved(list(names), "GPU")
    return removed(*names)


def cleared_event(format: KvFormat) -> Any:
    return OldCleared() if format in (KvFormat.VLLM_OLD, KvFormat.SGLANG_OLD) else AllBlocksCleared()


def encode_batch(format: KvFormat, events: Sequence[Any], time: float) -> bytes:
    if format in (KvFormat.VLLM, KvFormat.VLLM_OLD):
        return vllm(*events, ts=time)
    return full(*events, ts=time)
