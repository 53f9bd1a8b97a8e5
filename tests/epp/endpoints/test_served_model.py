import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.served_model import ServedModel, read_model_list

VLLM = {
    "object": "list",
    "data": [
        {
            "id": "base",
            "object": "model",
            "created": 1750000000,
            "owned_by": "vllm",
            "root": "org/base",
            "parent": None,
            "max_model_len": 4096,
            "permission": [{"id": "modelperm-1", "object": "model_permission"}],
        },
        {
            "id": "lora",
            "object": "model",
            "created": 1750000001,
            "owned_by": "vllm",
            "root": "/lora",
            "parent": "base",
        },
    ],
}


def read(document: Any) -> tuple[ServedModel, ...]:
    return read_model_list(json.dumps(document).encode())


def test_the_list_of_vllm() -> None:
    assert read(VLLM) == (
        ServedModel(id="base", created=1750000000, owned_by="vllm", root="org/base", max_model_len=4096),
        ServedModel(id="lora", created=1750000001, owned_by="vllm", root="/lora", parent="base"),
    )


@pytest.mark.parametrize("wrong", [True, -1, 1.5, "7", None, [], {}, 2**60])
def test_a_field_of_the_wrong_type_is_absent(wrong: Any) -> None:
    names = "" if isinstance(wrong, str) else wrong
    entry = {
        "id": "m",
        "created": wrong,
        "max_model_len": wrong,
        "root": names,
        "parent": names,
        "owned_by": names,
    }
    assert read({"data": [entry]}) == (ServedModel(id="m"),)


def test_each_name_counts_once() -> None:
    assert [model.id for model in read({"data": [{"id": "a"}, {"id": "b"}, {"id": "a", "root": "x"}]})] == [
        "a",
        "b",
    ]


def test_a_list_may_be_empty() -> None:
    assert read({"data": []}) == ()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>", "not JSON"),
        (b'{"data": [{"id": "\xff"}]}', "not JSON"),
        (b"[" * 100_000, "not JSON|nested too deeply"),
        (b"{" + b'"a":[' * 50_000, "not JSON|nested too deeply"),
        (b"[]", "not a list of models"),
        (b'{"data": null}', "not a list of models"),
        (b'{"data": {"id": "m"}}', "not a list of models"),
        (b'{"data": ["m"]}', "not a list of models"),
        (b'{"data": [{"id": 7}]}', "not a list of models"),
        (b'{"data": [{"id": ""}]}', "not a list of models"),
        (json.dumps({"data": [{"id": "m" * 513}]}).encode(), "not a list of models"),
        (json.dumps({"data": [{"id": f"m{i}"} for i in range(1025)]}).encode(), "more than 1024 models"),
    ],
)
def test_what_is_no_list_of_models(body: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_model_list(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with suppress(ValueError):
        read_model_list(body)
