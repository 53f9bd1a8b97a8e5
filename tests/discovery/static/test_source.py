"""Fixed addresses: lists, host names, files."""

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import discovery
from discovery import SourceDiscovery, WatchState
from discovery.static.endpoints_file import (
    EndpointsFile,
    FixedEndpoint,
    describe_change,
    parse_hosts,
    read_endpoints_file,
)
from discovery.static.source import StaticSource, open_static
from tests.eventually import eventually


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


async def test_a_name_that_does_not_resolve_shows_in_explain_and_hides_no_other() -> None:
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
        ("good:80,bad..name:80", "'bad..name:80': 'bad..name' is not a host name: label empty"),
        (f"{'a' * 64}.org:80", "is not a host name"),
        ("a/b:80", "'a/b' is not a host name"),
        ("10.0.0.300:80", "'10.0.0.300' is not an IPv4 address"),
        ("127.1:80", "'127.1' is not an IPv4 address"),
        ("1234:80", "'1234' is not an IPv4 address"),
        ("a b:80", "'a b' is not a host name"),
        ("user@host:80", "'user@host' is not a host name"),
        ("[10.0.0.1]:80", "not an IPv6 address"),
        ("[fe80::1%eth0]:80", "the zone %eth0 is valid on one machine only"),
        (f"h:{'9' * 5000}", "is not host:port"),
    ],
)
def test_a_wrong_entry_is_named(hosts: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_hosts(hosts)


@pytest.mark.parametrize("name", ["b\u00fccher.example", "under_score", "Upper.Case", "dot.at.end."])
def test_host_names_of_all_kinds(name: str) -> None:
    assert [endpoint.address for endpoint in parse_hosts(f"{name}:80")] == [name.lower()]


async def test_a_name_that_is_invalid_for_resolvers_does_not_end_the_watch() -> None:
    endpoints = [FixedEndpoint("bad..name", 80, "bad"), FixedEndpoint("10.0.0.1", 80, "good")]
    async with SourceDiscovery(StaticSource(lambda: endpoints)) as service:
        assert [i.id for i in await service.list_instances("any", "thing")] == ["good"]
        [reason] = [c.reason for c in (await service.explain("any", "thing")).candidates if c.id == "bad"]
        assert "label empty" in (reason or "")


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
        open_static(f"static://{hosts}{path}")


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
        ("endpoints: [{name: a, address: x, port: 1}, {name: a, address: y, port: 1}]", "'a' appears twice"),
        ("endpoints: [{name: a, address: bad..name, port: 1}]", "endpoints.0.address: 'bad..name' is not"),
        ("endpoints: [{name: a, address: 'fe80::1%lo', port: 1}]", "endpoints.0.address: the zone %lo"),
        (
            "endpoints: [{name: a, address: 10.0.0.300, port: 1}]",
            "endpoints.0.address: '10.0.0.300' is not an IPv4",
        ),
        (
            "endpoints:\n- {name: a, address: h, port: 1}\n- name: b\n  address: h\n  port: 70000\n",
            "endpoints.yaml: line 5: endpoints.1.port: ",
        ),
        (
            "endpoints:\n- {name: a, address: h, port: 1}\n- {name: a, address: h, port: 2}\n",
            "endpoints.yaml: line 3: endpoints.1.name: the name 'a' appears twice",
        ),
        # some versions of libyaml refuse such a text themselves, before it has made an event
        ("endpoints: " + "[" * 100_000 + "]" * 100_000, "nested deeper than|exceeded maximum nesting depth"),
        ("- " * 300_000, "nested deeper than 20 levels|exceeded maximum nesting depth"),
        (
            "endpoints: [{name: a, namespace: x, address: h, port: 1}, {name: a, address: h, port: 1}, "
            + "{name: a.x, address: h, port: 1}]",
            "two endpoints would have the instance id 'a.x'",
        ),
        ("{", "neither YAML nor JSON"),
        ("- 1", "the document"),
    ],
)
def test_a_wrong_file_names_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_endpoints_file(path)


async def test_one_name_in_two_namespaces_is_two_instances(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(
        "endpoints:\n"
        "- {name: a, namespace: x, address: 10.0.0.1, port: 1}\n"
        "- {name: a, namespace: y, address: 10.0.0.2, port: 2}\n"
        "- {name: b, namespace: y, address: 10.0.0.3, port: 3}\n"
    )
    assert await listed(f"static://{path}") == ["a.x 10.0.0.1:1", "a.y 10.0.0.2:2", "b 10.0.0.3:3"]


def test_a_file_that_did_not_change_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"

    def write(port: int, seconds_ago: float) -> None:
        path.write_text(json.dumps({"endpoints": [{"name": "w", "address": "10.0.0.1", "port": port}]}))
        then = time.time() - seconds_ago
        os.utime(path, (then, then))

    write(1, 100)
    read = EndpointsFile(path)
    first = read()
    assert read() is first
    write(2, 50)
    assert [endpoint.port for endpoint in read()] == [2]

    def is_read_twice() -> bool:
        write(3, 0)  # just now: another change could carry the same time
        return read() is not read()

    assert any(is_read_twice() for _ in range(20)), "at least where the machine does not stand still for 2 s"
    path.write_text("{")
    os.utime(path, (1, 1))
    for _ in range(2):
        with pytest.raises(ValueError, match="neither YAML nor JSON"):
            read()
    write(4, 10)
    assert [endpoint.port for endpoint in read()] == [4]


async def test_a_list_that_is_slow_to_read_blocks_no_other_task() -> None:
    started, may_go = threading.Event(), threading.Event()

    def read() -> list[FixedEndpoint]:
        started.set()
        assert may_go.wait(90)
        return [FixedEndpoint("10.0.0.1", 80)]

    async with SourceDiscovery(StaticSource(read)) as service:
        listing = asyncio.create_task(service.list_instances("any", "thing"))
        await eventually(started.is_set)
        may_go.set()
        assert len(await listing) == 1


def test_the_line_is_found_in_json_too(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    path.write_text('{"endpoints": [\n\t{"name": "a", "address": "h"},\n{"name": "b"}\n]}')
    with pytest.raises(ValueError, match="endpoints.json: line 2: endpoints.0.port: Field required"):
        read_endpoints_file(path)


GOOD = "endpoints: [{name: a, address: 10.0.0.1, port: 1}]"
ONE_IS_WRONG = (
    "endpoints:\n- {name: a, address: 10.0.0.1, port: 2}\n- {name: b, address: 10.0.0.300, port: 1}\n"
)


def _put(path: Path, text: str) -> None:
    """Atomic: no reader sees half of it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


class Counted:
    """Reads the file, and can wait until it was looked at twice more."""

    def __init__(self, path: Path) -> None:
        self._read = EndpointsFile(path)
        self._looks = 0

    def __call__(self) -> Sequence[FixedEndpoint]:
        self._looks += 1
        return self._read()

    async def looks_again(self) -> None:
        before = self._looks
        await eventually(lambda: self._looks >= before + 2)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: _put(path, "endpoints:\n  - {\n"), "is neither YAML nor JSON"),
        (lambda path: _put(path, "endpoint: []"), "endpoints: Field required"),
        (lambda path: _put(path, f"{GOOD[:-1]}, {GOOD[12:]}"), "'a' appears twice in namespace 'default'"),
        (lambda path: path.unlink(), "No such file or directory"),
        (
            lambda path: _put(path, ONE_IS_WRONG),
            "line 3: endpoints.1.address: '10.0.0.300' is not an IPv4 address: four numbers from 0 to 255",
        ),
    ],
    ids=["no YAML", "unknown key", "a name twice", "removed", "one wrong address"],
)
async def test_an_invalid_file_is_logged_once_and_its_recovery_too(
    spoil: Callable[[Path], Any], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "discovery.static.source")
    path = tmp_path / "endpoints.yaml"
    _put(path, GOOD)
    counted = Counted(path)
    async with SourceDiscovery(StaticSource(counted)) as service, service.watch("any", "thing") as stream:
        spoil(path)
        await eventually(lambda: caplog.records)
        await counted.looks_again()
        [warning] = caplog.records
        assert warning.levelno == logging.WARNING
        assert warning.getMessage().startswith(str(path))
        assert said in warning.getMessage()
        assert warning.getMessage().endswith("; the last valid list of endpoints stays in use")
        assert "\n" not in warning.getMessage()
        assert stream.health.state is WatchState.DEGRADED
        assert [(i.id, i.port) for i in stream.instances.values()] == [("a", 1)], (
            "nothing of the file is used"
        )
        _put(path, "endpoints: [x]")
        await eventually(lambda: len(caplog.records) == 2)
        assert "endpoints.0: expected a mapping" in caplog.records[1].getMessage()
        _put(path, GOOD)
        await eventually(lambda: len(caplog.records) == 3)
        assert caplog.records[2].levelno == logging.INFO
        assert "is valid again" in caplog.records[2].getMessage()
        await eventually(lambda: stream.health.state is WatchState.SYNCED)


async def test_a_file_that_is_missing_at_the_start_is_an_error(tmp_path: Path) -> None:
    async with discovery.open(f"static://{tmp_path}/none.yaml") as service:
        with pytest.raises(FileNotFoundError, match="none.yaml"):
            await service.list_instances("any", "thing")


async def test_a_changed_list_is_logged_once_with_what_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "discovery.static.source")
    path = tmp_path / "endpoints.yaml"
    _put(path, GOOD)
    counted = Counted(path)
    async with SourceDiscovery(StaticSource(counted)) as service, service.watch("any", "thing") as stream:
        _put(path, f"# a comment changes nothing\n{GOOD}")
        await counted.looks_again()
        _put(
            path, "endpoints: [{name: a, address: 10.0.0.1, port: 2}, {name: b, address: 10.0.0.3, port: 1}]"
        )
        await eventually(lambda: caplog.records)
        await counted.looks_again()
        said = [(record.levelno, record.getMessage()) for record in caplog.records]
        assert said == [(logging.INFO, "the list of endpoints changed: added b; changed a")]
        assert {i.id: i.port for i in stream.instances.values()} == {"a": 2, "b": 1}


def test_a_change_of_thousands_is_one_short_line() -> None:
    old = [FixedEndpoint("10.0.0.1", port) for port in range(1, 2001)]
    new = [FixedEndpoint("::1", 1, "named")]
    listed = ", ".join(f"10.0.0.1:{port}" for port in range(1, 11))
    assert describe_change(old, new) == f"added named; removed {listed} and 1990 more"
    assert describe_change(old, list(old)) == ""
