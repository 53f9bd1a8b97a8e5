"""Fixed addresses: lists, host names, files."""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import discovery
from discovery import InstanceAddedEvent, InstanceRemovedEvent, SourceDiscovery, WatchState
from discovery.endpoints_file import parse_hosts, read_endpoints_file
from discovery.static import StaticSource, open_static


async def listed(url: str) -> list[str]:
    async with discovery.open(url) as service:
        return [f"{i.id} {i.authority}" for i in await service.list_instances("any", "thing")]


async def test_a_list_of_addresses() -> None:
    assert await listed("static://10.0.0.1:8000,[::1]:8001") == [
        "0000-0000-0000-0000-0000-0000-0000-0001-8001 [::1]:8001",
        "10-0-0-1-8000 10.0.0.1:8000",
    ]


async def test_a_host_name_stands_for_all_its_addresses() -> None:
    assert "127-0-0-1-8000 127.0.0.1:8000" in await listed("static://localhost:8000")


async def test_a_name_that_does_not_resolve_hides_nobody_and_shows_in_explain() -> None:
    async with discovery.open("static://nowhere.invalid:80,10.0.0.1:80") as service:
        assert [i.id for i in await service.list_instances("any", "thing")] == ["10-0-0-1-80"]
        reasons = {c.id: c.reason or "" for c in (await service.explain("any", "thing")).candidates}
        assert "does not resolve" in reasons["nowhere.invalid"]


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ("10.0.0.1", "is not host:port"),
        ("10.0.0.1:0", "port from 1 to 65535"),
        ("10.0.0.1:65536", "port from 1 to 65535"),
        ("10.0.0.1:http", "is not host:port"),
        ("::1:80", "needs brackets"),
        ("[x]:80", "not an IPv6 address"),
        (":80", "is not host:port"),
        (",", "no endpoint is named"),
    ],
)
def test_a_wrong_entry_is_named(hosts: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_hosts(hosts)


@given(st.text(max_size=30))
def test_no_text_makes_it_fail_in_another_way(text: str) -> None:
    try:
        for endpoint in parse_hosts(text):
            assert 1 <= endpoint.port <= 65535
    except ValueError:
        pass


@pytest.mark.parametrize(("hosts", "path"), [("", ""), ("", "/"), ("10.0.0.1:80", "/file")])
def test_a_static_url_names_hosts_or_a_file(hosts: str, path: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        open_static(hosts, path)


YAML = """
endpoints:
  - name: vllm-0
    address: 10.0.0.1
    port: "8000"
    labels: {model: llama}
  - name: vllm-1
    namespace: other
    address: localhost
    port: 8001
"""


async def test_the_go_pickers_file(tmp_path: Path) -> None:
    (tmp_path / "endpoints.yaml").write_text(YAML)
    found = await listed(f"static://{tmp_path / 'endpoints.yaml'}")
    assert found[0] == "vllm-0 10.0.0.1:8000"
    assert "vllm-1-127-0-0-1 127.0.0.1:8001" in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("endpoints: 5", r"endpoints: .*list"),
        ("endpoints: [{name: a, address: 10.0.0.1}]", "endpoints.0.port: Field required"),
        ("endpoints: [{name: a, address: 10.0.0.1, port: 0}]", "endpoints.0.port"),
        ("endpoints: [{name: A, address: 10.0.0.1, port: 1}]", "endpoints.0.name: .*DNS-1123"),
        ("endpoints: [{name: a, address: 10.0.0.1, port: 1, metrics: 2}]", "endpoints.0.metrics"),
        ("endpoints: [{name: a, address: x, port: 1}, {name: a, address: y, port: 1}]", "'a' stands twice"),
        ("{", "neither YAML nor JSON"),
        ("- 1", "the document"),
    ],
)
def test_a_wrong_file_names_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_endpoints_file(path)


async def test_a_changed_file_is_read_again_and_a_broken_one_keeps_the_last_good_list(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"

    def write(*ports: int) -> None:
        entries = [{"name": f"w{port}", "address": "10.0.0.1", "port": port} for port in ports]
        path.write_text(json.dumps({"endpoints": entries}))

    write(1)
    async with (
        asyncio.timeout(10),
        SourceDiscovery(StaticSource(lambda: read_endpoints_file(path))) as service,
        service.watch("any", "thing") as stream,
    ):
        assert isinstance(await anext(stream), InstanceAddedEvent)
        path.write_text("{")
        while stream.health.state is not WatchState.DEGRADED:
            await asyncio.sleep(0.01)
        assert "neither YAML nor JSON" in (stream.health.reason or "")
        assert list(stream.instances) == ["w1"]
        write(2)
        removed, added = await anext(stream), await anext(stream)
        assert isinstance(removed, InstanceRemovedEvent)
        assert (removed.instance_id, added.instance_id) == ("w1", "w2")
        assert stream.health.state is WatchState.SYNCED


async def test_a_file_that_is_missing_at_the_start_is_an_error(tmp_path: Path) -> None:
    async with discovery.open(f"static://{tmp_path}/none.yaml") as service:
        with pytest.raises(FileNotFoundError, match="none.yaml"):
            await service.list_instances("any", "thing")
