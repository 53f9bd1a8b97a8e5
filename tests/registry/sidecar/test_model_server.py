"""What is said of a server that does not say it itself."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from registry.sidecar.model_server import MetadataFile, describe_transport, merge, read_models

DEEP = b'{"data": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[1]", "holds a JSON list"),
        (b"\xff", "is not JSON"),
        (b"{", "is not JSON"),
        (DEEP, "is not JSON: it is nested too deeply"),
        (b'{"a": "' + b"x" * 1_048_576 + b'"}', "is larger than 1048576 bytes"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_broken_file_says_what_is_wrong_and_keeps_what_was_good(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "metadata.json"
    path.write_text('{"good": true}')
    file = MetadataFile(path)
    file.refresh()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(ValueError, match=words):
            file.refresh()
    assert file.content == {"good": True}
    path.write_text('{"good": "again"}')
    file.refresh()
    assert file.content == {"good": "again"}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"data": {}}', b'{"data": ["a"]}', b'{"data": [{"id": 1}]}', DEEP]
)
def test_a_list_of_models_that_is_none(body: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        read_models(body)


def test_an_empty_list_of_models_says_nothing() -> None:
    assert read_models(b'{"data": []}') == {}


def test_the_port_is_the_schemes_where_the_url_names_none() -> None:
    assert describe_transport(URL("https://worker"), None) == {
        "transport": {"http": {"port": 443, "metrics_port": 443}}
    }


OBJECTS = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8
).filter(lambda value: isinstance(value, dict))


@given(OBJECTS, OBJECTS)
def test_merging_loses_nothing_of_what_counts(under: dict[str, Any], over: dict[str, Any]) -> None:
    both = merge(under, over)
    assert merge(both, over) == both
    assert both.keys() == under.keys() | over.keys()
    assert merge({}, over) == over
