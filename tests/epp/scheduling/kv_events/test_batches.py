"""Batches of KV events as three engines encode them, in their old and new forms; and what is none."""

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.scheduling.kv_events.batches import (
    MOST_BYTES,
    BatchError,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    batch_steps,
)
from examples.simulator.kv_messages import (
    AllBlocksCleared,
    BlockRemoved,
    OldCleared,
    OldRemoved,
    OldStored,
    SglangStored,
    TrtllmStored,
    full,
    removed,
    stored,
    vllm,
)
from tests.epp.kv_events.steps import read_batch

GPU = ("gpu", 0, "", "")
TOKENS = list(range(100, 132))


def only(payload: bytes) -> Any:
    batch = read_batch(payload)
    assert (batch.unknown, batch.faulty) == (0, 0)
    (event,) = batch.events
    return event


def test_vllm_sends_maps() -> None:
    event = only(vllm(stored([2**64 - 1, 5], TOKENS, parent=7)))
    assert event == BlocksStored(GPU, [2**64 - 1, 5], 7, TOKENS, 16)
    assert only(vllm(removed(5, medium="CPU"))) == BlocksRemoved(("host", 0, "", ""), [5])
    assert only(vllm(AllBlocksCleared(), rank=3)) == BlocksCleared()


def test_older_vllm_sends_arrays() -> None:
    assert only(vllm(OldStored([1, 2], None, TOKENS, 16, None))) == BlocksStored(
        GPU, [1, 2], None, TOKENS, 16
    )
    assert only(vllm(OldRemoved([1], "CPU"))) == BlocksRemoved(("host", 0, "", ""), [1])
    assert only(vllm(OldCleared())) == BlocksCleared()
    one = OldStored([1, 2], 9, TOKENS, 16, 3, "GPU", "poet")
    assert only(vllm(one)).adapter == "poet"


def test_a_batch_may_be_a_map() -> None:  # one version of vLLM, 0181ea3
    payload = msgspec.msgpack.encode({"ts": 2.0, "events": [{"type": "AllBlocksCleared"}], "x": 1})
    assert read_batch(payload).time == 2.0
    assert only(payload) == BlocksCleared()


def test_a_batch_may_have_more_elements() -> None:  # vLLM's PR 57789 appends the publisher's id
    payload = msgspec.msgpack.encode([1.0, [{"type": "AllBlocksCleared"}], 0, b"0123456789abcdef", {"a": 1}])
    assert only(payload) == BlocksCleared()


def test_a_digest_is_the_integer_of_its_last_bytes() -> None:
    digest = bytes(range(32))
    event = only(vllm(stored([digest], TOKENS[:16], parent=digest[::-1])))
    assert event.hashes == [int.from_bytes(digest[-8:], "big")]
    assert event.parent == int.from_bytes(digest[::-1][-8:], "big")


def test_sglang_sends_signed_hashes_and_leaves_out_names() -> None:
    event = only(full(SglangStored([-1, 4], -9, TOKENS, 16, None, "CPU_PINNED")))
    assert event.hashes == [2**64 - 1, 4]
    assert event.parent == 2**64 - 9
    assert event.scope == ("host", 0, "", "")
    assert event.adapter is None
    salted = only(full(SglangStored([1], None, TOKENS[:16], 16, None, "GPU", cache_salt="s")))
    assert salted.salt == "s"


VLLM_RECORDED = bytes.fromhex(
    "93cb41da49204010000094de000aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392c420000102030405060708090a0b0c"
    "0d0e0f101112131415161718191a1b1c1d1e1fc420202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3fb1706172656e74"
    "5f626c6f636b5f68617368c0a9746f6b656e5f696473980102030405060708aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3"
    "475055a96c6f72615f6e616d65c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6ede"
    "000ca474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739107b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f"
    "69647394090a0b0caa626c6f636b5f73697a6504a76c6f72615f696403a66d656469756da3435055a96c6f72615f6e616d65a4706f6574aa65787472"
    "615f6b6579739192a4706f6574a473616c74a86c6f63616c697479a54c4f43414caa73657373696f6e5f6964a27331b36c6f6f6b61686561645f746f"
    "6b656e5f69647391910d83a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739107a66d656469756da343505581a4747970"
    "65b0416c6c426c6f636b73436c656172656400"
)
"""One batch, as the encoder in the wheel of vLLM 0.33.0 wrote it."""
TRTLLM_RECORDED = bytes.fromhex(
    "93cb41da492040100000948aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cfffffffffffffffff05b1706172656e74"
    "5f626c6f636b5f68617368c0a9746f6b656e5f696473980102030405060708aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3"
    "475055a96c6f72615f6e616d65c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e89"
    "a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739107b1706172656e745f626c6f636b5f6861736805a9746f6b656e5f6964"
    "7394090a0b0caa626c6f636b5f73697a6504a76c6f72615f696403a66d656469756da3475055a96c6f72615f6e616d65a4706f6574a76d6d5f6b6579"
    "73919183a474797065a66d6d5f6b6579a468617368a26162ac73746172745f6f66667365740183a474797065ac426c6f636b52656d6f766564ac626c"
    "6f636b5f6861736865739107a66d656469756da347505581a474797065b0416c6c426c6f636b73436c656172656400"
)
"""The same of TensorRT-LLM's messages as `kv_cache_events.py` at 13599e98 declares them."""


def test_what_vllm_s_own_encoder_writes() -> None:
    batch = read_batch(VLLM_RECORDED)
    assert (batch.time, batch.unknown, batch.faulty) == (1764000000.25, 0, 0)
    first, second = (int.from_bytes(bytes(range(end - 8, end)), "big") for end in (32, 64))
    host = ("host", 0, "LOCAL", "")
    stored_first, stored_later, gone, cleared = batch.events
    assert stored_first == BlocksStored(GPU, [first, second], None, list(range(1, 9)), 4)
    assert stored_later == BlocksStored(host, [7], None, [9, 10, 11, 12], 4, "poet", "salt")
    assert (gone, cleared) == (BlocksRemoved(("host", 0, "", ""), [7]), BlocksCleared())


def test_what_trtllm_s_own_encoder_writes() -> None:
    batch = read_batch(TRTLLM_RECORDED)
    assert (batch.time, batch.unknown, batch.faulty) == (1764000000.25, 0, 0)
    stored_first, stored_later, gone, cleared = batch.events
    assert stored_first == BlocksStored(GPU, [2**64 - 1, 5], None, list(range(1, 9)), 4)
    assert (stored_later.parent, stored_later.tokens, stored_later.adapter) == (5, [9, 10, 11, 12], "poet")
    assert stored_later.extras[0]
    assert (gone, cleared) == (BlocksRemoved(GPU, [7]), BlocksCleared())


SGLANG_RECORDED = bytes.fromhex(
    "93cb41da4920401000009487a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392d3fedcba9876543210cf0fedcba987654321"
    "b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc00100102030405060708090a0b0c0d0e0f10aa626c6f636b5f73697a6508"
    "a76c6f72615f6964c0a66d656469756da34750558aa474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739105b1706172656e74"
    "5f626c6f636b5f68617368cf0fedcba987654321a9746f6b656e5f6964739411121314aa626c6f636b5f73697a6508a76c6f72615f6964c0a66d6564"
    "69756daa4350555f50494e4e4544aa63616368655f73616c74a473616c74aa73657373696f6e5f6964a27331a96c6f72615f6e616d65a4706f657483"
    "a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739105a66d656469756daa4350555f50494e4e454481a474797065b0416c"
    "6c426c6f636b73436c656172656401"
)
"""One batch, as the encoder in the wheel of SGLang 0.5.23 wrote it."""


def test_what_sglang_s_own_encoder_writes() -> None:
    batch = read_batch(SGLANG_RECORDED)
    assert (batch.time, batch.unknown, batch.faulty) == (1764000000.25, 0, 0)
    host = ("host", 0, "", "")
    first, second = 0xFEDCBA9876543210, 0x0FEDCBA987654321
    assert batch.events == [
        BlocksStored(GPU, [first, second], None, list(range(1, 17)), 8),
        BlocksStored(host, [5], second, [17, 18, 19, 20], 8, "poet", "salt"),
        BlocksRemoved(host, [5]),
        BlocksCleared(),
    ]


def test_sglang_sends_pairs_for_eagle() -> None:
    pairs = [[token, token + 1] for token in TOKENS]
    assert only(full(SglangStored([1, 2], None, pairs, 16, None))).tokens == TOKENS


def test_a_last_page_may_be_short() -> None:
    assert len(only(full(SglangStored([1, 2], None, TOKENS[:20], 16, None))).tokens) == 20


def test_trtllm_sends_images_in_fields_of_its_own() -> None:
    image = {"type": "mm_key", "hash": "ab", "start_offset": 3}
    event = only(full(TrtllmStored([1, 2], None, TOKENS, 16, mm_keys=[[image], []])))
    assert event.extras[0]
    assert not event.extras[1]
    other = only(full(TrtllmStored([1, 2], None, TOKENS, 16, mm_keys=[[image | {"hash": "ac"}], []])))
    assert other.extras != event.extras


def test_extra_keys_have_no_adapter_and_one_salt() -> None:
    plain = only(vllm(stored([1, 2], TOKENS, lora_name="poet", extra_keys=[["poet"], ["poet"]])))
    assert (plain.adapter, plain.salt, plain.extras) == ("poet", "", ())
    salted = only(vllm(stored([1, 2], TOKENS, lora_name="poet", extra_keys=[["poet", "s"], ["poet"]])))
    assert (salted.adapter, salted.salt, salted.extras) == ("poet", "s", ())
    image = only(vllm(stored([1, 2], TOKENS, extra_keys=[[["image", 0]], None])))
    assert (image.salt, [bool(one) for one in image.extras]) == ("", [True, False])
    later = only(vllm(stored([1, 2], TOKENS, parent=5, extra_keys=[["digest"], None])))
    assert later.salt == ""
    assert later.extras[0]


def test_an_adapter_without_a_name_is_none_that_a_client_can_ask_for() -> None:
    event = only(full(TrtllmStored([1, 2], None, TOKENS, 16, lora_id=4)))
    assert event.adapter == "\x004"


def test_groups_that_do_not_name_every_block_teach_nothing() -> None:
    sparse = only(vllm(stored([1], TOKENS, group_idx=1, kv_cache_spec_kind="sliding_window")))
    assert not sparse.whole
    assert sparse.scope == ("gpu", 1, "", "")
    assert not sparse.tokens
    full_attention = stored([1, 2], TOKENS, group_idx=0, kv_cache_spec_kind="full_attention")
    assert only(vllm(full_attention)).whole


def test_a_store_without_tokens_is_one_of_known_blocks() -> None:
    event = only(vllm(stored([1, 2], [], size=0, medium="CPU")))
    assert (event.hashes, list(event.tokens), event.block_size) == ([1, 2], [], 0)
    assert only(vllm(stored([], []))).hashes == []


def test_mooncake_s_store_is_not_the_worker_s_memory() -> None:
    assert only(vllm(removed(1, medium="cpu"))).scope[0] == "cpu"


def test_one_event_takes_no_other_with_it() -> None:
    good = {"type": "BlockRemoved", "block_hashes": [1], "medium": None}
    unknown = [{"type": "BlockMoved", "block_hashes": [1]}, ["Heartbeat", 1], {"type": "BlockUpdated"}]
    faulty = [
        {"type": "BlockRemoved"},
        {"type": "BlockRemoved", "block_hashes": ["text"]},
        {"type": "BlockStored", "block_hashes": [1], "token_ids": [-1] * 16, "block_size": 16},
        {"type": "BlockStored", "block_hashes": [1], "token_ids": [1] * 16, "block_size": "16"},
        {
            "type": "BlockStored",
            "block_hashes": [1, 2],
            "token_ids": [1] * 32,
            "block_size": 16,
            "extra_keys": [None],
        },
        ["BlockRemoved", 7],
        7,
        None,
        [],
        {},
    ]
    batch = read_batch(msgspec.msgpack.encode([1.0, [*unknown, good, *faulty, good]]))
    assert batch.events == [BlocksRemoved(GPU, [1])] * 2
    assert (batch.unknown, batch.faulty) == (len(unknown), len(faulty))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x92\x01",
        b"\x90",
        msgspec.msgpack.encode("text"),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode([1.0, "events"]),
        msgspec.msgpack.encode(["now", []]),
        msgspec.msgpack.encode({"ts": 1.0}),
        b"\x92\x01\xdd\xff\xff\xff\xff",
        b"\x92\x01\x91" * 100_000,
        b"\x92\x01\xdd\x00\x02\x00\x00" + b"\x90" * 0x20000,
        bytes(MOST_BYTES + 1),
    ],
)
def test_what_is_no_batch(payload: bytes) -> None:
    with pytest.raises(BatchError, match="expected|msgpack"):
        read_batch(payload)


def test_a_claim_of_many_hashes_is_refused_before_they_are_read() -> None:
    hashes = b"\xdd" + struct.pack(">I", 262_145) + b"\x01" * 262_145
    event = b"\x82\xa4type\xacBlockRemoved\xacblock_hashes" + hashes
    assert read_batch(b"\x92\x01\x91" + event).faulty == 1


def test_long_extra_keys_are_refused() -> None:
    assert read_batch(vllm(stored([1, 2], TOKENS, extra_keys=[["x" * 5000], None]))).faulty == 1


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_is_changed_in_a_batch_is_read_or_refused(data: st.DataObject) -> None:
    payload = data.draw(
        st.sampled_from(
            [
                vllm(
                    stored([1, 2], TOKENS, extra_keys=[["s"], None], group_idx=1),
                    removed(3),
                    AllBlocksCleared(),
                ),
                vllm(OldStored([1], None, TOKENS[:16], 16, None), OldRemoved([1]), OldCleared()),
                full(SglangStored([-1], None, TOKENS[:16], 16, None), BlockRemoved([-1], "GPU")),
            ]
        )
    )
    changed = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed)))
    for sent in (bytes(changed), bytes(changed[:cut])):
        try:
            batch = read_batch(sent)
        except BatchError:
            continue
        assert batch.faulty + batch.unknown + len(batch.events) <= len(sent)


@pytest.mark.parametrize("as_pairs", [False, True])
def test_a_large_batch_is_read_in_pieces(as_pairs: bool) -> None:
    """None is of more numbers than are decoded in a millisecond."""
    sizes = [0, 200, 60_000, 2**31]  # 1, 2, 3 and 5 bytes
    tokens = [sizes[at % 4] + at % 50 for at in range(120_000)]
    given = [[token, 1] for token in tokens] if as_pairs else tokens
    digests = [at.to_bytes(32, "big") for at in range(20_000)]
    payload = full(
        SglangStored(list(range(-20_000, 0)), None, given, 6, None),
        BlockRemoved(digests, "GPU"),
    )
    steps = batch_steps(payload)
    assert sum(1 for _ in steps) > 8
    stored_, removed_ = read_batch(payload).events
    assert isinstance(stored_, BlocksStored)
    assert stored_.tokens == tokens
    assert stored_.hashes == list(range(2**64 - 20_000, 2**64))
    assert removed_ == BlocksRemoved(GPU, list(range(20_000)))


def test_a_long_array_of_other_things_is_refused() -> None:
    for thing in ("x", [1, [2, 3]], [1], None, 1.0):
        event = {"type": "BlockStored", "block_hashes": [1], "token_ids": [thing] * 20_000, "block_size": 16}
        assert read_batch(msgspec.msgpack.encode([1.0, [event]])).faulty == 1
