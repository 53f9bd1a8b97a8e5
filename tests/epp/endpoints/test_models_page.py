import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.endpoints.endpoint import Endpoint
from epp.endpoints.models_page import ModelsPage
from epp.endpoints.served_model import ServedModel, read_model_list
from tests.epp.scheduling.endpoint_pools import make_endpoint


def endpoint(name: str, declared: set[str] | None = None, listed: tuple[ServedModel, ...] = ()) -> Endpoint:
    return make_endpoint(name, models=frozenset(declared or ()), listed_models=listed)


BASE = ServedModel(id="base", created=7, owned_by="vllm", root="org/base", max_model_len=4096)
LORA = ServedModel(id="a-lora", created=8, owned_by="vllm", root="/lora", parent="base")


def shown(page: bytes | None) -> list[dict[str, Any]]:
    assert page is not None
    document = json.loads(page)
    assert document["object"] == "list"
    models: list[dict[str, Any]] = document["data"]
    return models


def test_the_union_of_what_is_declared_and_listed() -> None:
    endpoints = (
        endpoint("one", {"m"}),
        endpoint("two", listed=(BASE, LORA)),
        endpoint("three", listed=(BASE,)),
    )
    assert shown(ModelsPage(frozenset()).render(endpoints)) == [
        {
            "id": "base", "object": "model", "created": 7, "owned_by": "vllm", "root": "org/base", "max_model_len": 4096,
        },
        {"id": "m", "object": "model", "created": 0, "owned_by": "adsum"},
        {
            "id": "a-lora", "object": "model", "created": 8, "owned_by": "vllm", "root": "/lora", "parent": "base",
        },
    ]  # fmt: skip


def test_what_a_worker_lists_says_more_than_a_declared_name_whoever_comes_first() -> None:
    declaring, listing = endpoint("one", {"base"}), endpoint("two", listed=(BASE,))
    for order in ((declaring, listing), (listing, declaring)):
        assert [model["owned_by"] for model in shown(ModelsPage(frozenset()).render(order))] == ["vllm"]


LIE = ServedModel(id="base", created=1, owned_by="liar", root="/tmp", parent="x", max_model_len=1)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_worker_that_says_something_else_describes_no_model(place: int) -> None:
    said = [BASE, BASE]
    said.insert(place, LIE)
    endpoints = tuple(endpoint(f"w{number}", listed=(one,)) for number, one in enumerate(said))
    [model] = shown(ModelsPage(frozenset()).render(endpoints))
    assert model == shown(ModelsPage(frozenset()).render((endpoint("w", listed=(BASE,)),)))[0]


@pytest.mark.parametrize(
    ("lengths", "shown_as"), [((8, 4), 4), ((8, 4, 8), 8), ((None, 4), 4), ((8, None, None), None)]
)
def test_the_shorter_context_counts_where_as_many_state_it(
    lengths: tuple[int | None, ...], shown_as: int | None
) -> None:
    listed = [replace(BASE, max_model_len=length) for length in lengths]
    endpoints = tuple(endpoint(f"w{number}", listed=(one,)) for number, one in enumerate(listed))
    [model] = shown(ModelsPage(frozenset()).render(endpoints))
    assert model.get("max_model_len") == shown_as


def test_what_a_worker_declares_counts_and_not_its_list() -> None:
    assert [m["id"] for m in shown(ModelsPage(frozenset()).render((endpoint("one", {"m"}, (BASE,)),)))] == [
        "m"
    ]


def test_nothing_is_known() -> None:
    page = ModelsPage(frozenset())
    assert page.render(()) is None
    assert page.render((endpoint("one"),)) is None


def test_only_the_models_that_the_operator_named_exist() -> None:
    page = ModelsPage(frozenset({"base", "later"}))
    assert [m["id"] for m in shown(page.render((endpoint("one", listed=(BASE, LORA)),)))] == ["base", "later"]


def test_it_is_rendered_once_for_each_set_of_endpoints() -> None:
    page, endpoints = ModelsPage(frozenset()), (endpoint("one", {"m"}),)
    assert page.render(endpoints) is page.render(endpoints)
    assert page.render((endpoint("one", {"n"}),)) != page.render(endpoints)


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
