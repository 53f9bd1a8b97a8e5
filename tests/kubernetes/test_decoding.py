"""Endpoints whose bytes did not change are the same objects; whatever is decoded is what the bytes say."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discovery.kubernetes.slices.decoding import EndpointSlice, RawSlice, SliceDecoder
from tests.kubernetes.slice_builders import endpoint

_raw = msgspec.json.Decoder(RawSlice).decode


def encoded(endpoints: list[dict[str, Any]] | None, name: str = "s") -> bytes:
    document = {"metadata": {"name": name}, "addressType": "IPv4", "endpoints": endpoints}
    return json.dumps(document).encode()


def decode(decoder: SliceDecoder, *endpoints: dict[str, Any], name: str = "s") -> EndpointSlice:
    return decoder.finish(_raw(encoded(list(endpoints), name)))


shown = st.builds(endpoint, st.sampled_from("abc"), st.sampled_from("12"), ready=st.none() | st.booleans())
histories = st.lists(st.tuples(st.sampled_from("st"), st.none() | st.lists(shown, max_size=4)), max_size=8)


@settings(deadline=None)
@given(histories)
def test_it_says_what_decoding_anew_says(history: list[tuple[str, list[dict[str, Any]] | None]]) -> None:
    decoder = SliceDecoder()
    for name, endpoints in history:
        body = encoded(endpoints, name)
        assert decoder.finish(_raw(body)) == msgspec.json.decode(body, type=EndpointSlice)


def test_what_did_not_change_is_the_same_object() -> None:
    decoder = SliceDecoder()
    a, b, c = (endpoint(name) for name in "abc")
    first = decode(decoder, a, b, c).endpoints
    again = decode(decoder, a, b, c).endpoints
    assert again is first
    changed = decode(decoder, a, endpoint("b", ready=False), c).endpoints
    assert first is not None
    assert changed is not None
    assert [new is old for new, old in zip(changed, first, strict=True)] == [True, False, True]


def test_endpoints_that_move_up_are_kept() -> None:
    decoder = SliceDecoder()
    a, b, c = (endpoint(name) for name in "abc")
    first = decode(decoder, a, b, c).endpoints
    fewer = decode(decoder, b, c).endpoints
    assert first is not None
    assert fewer is not None
    assert fewer[0] is first[1]
    assert fewer[1] is first[2]


def test_slices_have_nothing_to_do_with_each_other() -> None:
    decoder = SliceDecoder()
    first = decode(decoder, endpoint("a"), name="s")
    other = decode(decoder, endpoint("a", "other"), name="t")
    assert first.endpoints != other.endpoints


def test_what_is_gone_is_forgotten() -> None:
    decoder = SliceDecoder()
    first = decode(decoder, endpoint("a"), name="s")
    kept = decode(decoder, endpoint("a"), name="t")
    decoder.retain((kept,))
    assert decode(decoder, endpoint("a"), name="t").endpoints is kept.endpoints
    assert decode(decoder, endpoint("a"), name="s").endpoints is not first.endpoints
    decoder.forget("t")
    assert decode(decoder, endpoint("a"), name="t").endpoints is not kept.endpoints


@pytest.mark.parametrize("wrong", [{"addresses": 5}, {"conditions": {"ready": "yes"}}, None])
def test_what_does_not_fit_raises_and_leaves_what_was(wrong: Any) -> None:
    decoder = SliceDecoder()
    first = decode(decoder, endpoint("a"))
    for endpoints in ([wrong], [endpoint("a"), wrong]):
        with pytest.raises(msgspec.ValidationError):
            decode(decoder, *endpoints)
    assert decode(decoder, endpoint("a")).endpoints is first.endpoints


def test_text_that_is_no_utf_8_is_noticed() -> None:
    body = encoded([endpoint("a")]).replace(b"uid-a", b"uid-\xff")
    with pytest.raises((UnicodeDecodeError, msgspec.DecodeError)):
        SliceDecoder().finish(_raw(body))
