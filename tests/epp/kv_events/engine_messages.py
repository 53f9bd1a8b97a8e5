"""KV events as the engines encode them: their classes, with the options that decide what is on the wire.

vLLM 0.33 (distributed/kv_events.py), SGLang 0.5.23 (disaggregation/kv_events.py), TensorRT-LLM (_torch/pyexecutor/kv_cache_events.py),
and the array form of vLLM before PR 42892.
"""

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
