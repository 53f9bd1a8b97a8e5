from dataclasses import replace
from typing import Any

import pytest

from discovery import Instance
from discovery.metadata.document import may_name, serving_port

WORKER = Instance("w", "prod", "decode", "10.0.0.1", 8001, "one")


def http(port: object) -> dict[str, Any]:
    return {"transport": {"http": {"port": port}}}


def test_the_url_has_the_port_of_the_metadata_or_the_registered_one() -> None:
    assert WORKER.url == "http://10.0.0.1:8001"
    assert replace(WORKER, serving_port=8000).url == "http://10.0.0.1:8000"
    assert replace(WORKER, address="fd00::1", serving_port=8000).url == "http://[fd00::1]:8000"


@pytest.mark.parametrize("document", [http(8000), http("8000"), {"Transport": {"http": {"port": 8000}}}])
def test_a_port_is_read_in_each_spelling(document: dict[str, Any]) -> None:
    assert serving_port(WORKER, document) == 8000


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"transport": []},
        {"transport": {"http": 1}},
        http(0),
        http(65536),
        http(True),
        http("٣"),
        http(None),
    ],
)
def test_invalid_ports_are_none(document: dict[str, Any]) -> None:
    assert serving_port(WORKER, document) is None


def test_a_document_may_not_name_a_system_port() -> None:
    assert serving_port(WORKER, http(22)) is None
    assert not may_name(WORKER, 1023)
    assert may_name(WORKER, 1024)
    assert may_name(replace(WORKER, port=80), 80)
    assert may_name(replace(WORKER, ports={"api": 443}), 443)
