"""What a worker may not ask of `registry.open`, and the page of the URLs that it may."""

import re
from pathlib import Path
from typing import Any

import pytest

import registry
from discovery.source import SCHEMES
from registry.contract import Contract

PAGE = Path(__file__).parents[2] / "docs" / "discovery-sources.md"


def test_every_scheme_has_a_row_in_the_page() -> None:
    rows = re.findall(r"^\| `([a-z]+)://", PAGE.read_text(), re.MULTILINE)
    assert {*rows} == {*SCHEMES, "yours"}, f"write a row for each scheme into the table of {PAGE.name}"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (
            {"url": "memory://x", "instance_id": "Not_OK"},
            ValueError,
            "instance id 'Not_OK' is not a DNS-1123",
        ),
        (
            {"url": "memory://x", "address": "host:80"},
            ValueError,
            "'host:80' is neither a host name nor an IP",
        ),
        ({"url": "memory://x", "address": "0.0.0.0"}, ValueError, "nobody can reach '0.0.0.0'"),
        ({"url": "memory://x", "address": "::"}, ValueError, "nobody can reach '::'"),
        ({"url": "memory://x", "address": ""}, ValueError, "neither"),
        ({"url": "memory://x", "port": 70000}, ValueError, "70000 is not a port"),
        ({"url": "memory://x", "labels": {"a": 1}}, TypeError, "label 'a': 1; expected a string"),
        ({"url": "memory://x", "labels": {"a": "\ud800"}}, ValueError, "label 'a': .* has a lone surrogate"),
        ({"url": "memory://x", "contract": Contract()}, ValueError, "needs `port`"),
        (
            {"url": "memory://x", "contract": Contract(), "port": 1, "token": "t"},
            ValueError,
            "pass the token to",
        ),
        ({"url": "static://a:1"}, ValueError, "workers cannot register there"),
        ({"url": "kubernetes://x/y"}, ValueError, "has a path"),
        (
            {"url": "consul://x"},
            ValueError,
            "'consul://x' is not a registry URL; expected one of file:///path",
        ),
        ({"url": "etcd://user:secret@x"}, ValueError, "must hold no user and no password"),
        ({"url": "etcd://x?ttl=1s"}, ValueError, "ttl='1s'; expected whole seconds from 2"),
        ({"url": "file://tmp/x"}, ValueError, "three slashes"),
    ],
)
def test_bad_arguments_are_refused_at_the_door(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        registry.open(**arguments)


@pytest.mark.parametrize(
    ("namespace", "component", "words"),
    [
        ("", "decode", "namespace '' is not"),
        ("dynamo", "a/b", "component 'a/b' is not"),
        ("A", "b", "namespace 'A'"),
    ],
)
def test_bad_names_are_refused_before_anything_happens(namespace: str, component: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        registry.open("memory://x").register_instance(namespace, component)
