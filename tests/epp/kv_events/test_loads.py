"""Pushed loads: what is believed, and the ranks of one worker together."""

from typing import Any

import msgspec
import pytest

from epp.endpoints.datastore import PUSHED_COUNTS, Datastore
from epp.endpoints.load import Load
from epp.kv_events.loads import LoadStat, RankLoads, read_load
from epp.kv_events.publishers import SGLANG_PATH, read_publishers
from tests.epp.scheduling.test_director import store_of


def packed(*numbers: Any) -> bytes:
    return msgspec.msgpack.encode(["LoadStat", *numbers])


def test_the_oldest_form_and_newer_ones_are_read() -> None:
    assert read_load(packed(1, 2, 3, 4, None, 5)) == LoadStat(1, 2, 3, 4)
    assert read_load(packed(1, 2, 3, 4, 0, 5, 6, 7, 8, 9, "more")) == LoadStat(1, 2, 3, 4)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        packed(),
        packed(1, "x", 3),
        packed(-1, 0, 0, 0),
        msgspec.msgpack.encode(["Other", 1, 2, 3]),
        bytes(5000),
    ],
)
def test_what_is_no_load(payload: bytes) -> None:
    assert read_load(payload) is None


def test_a_worker_s_load_is_that_of_all_its_ranks() -> None:
    loads = RankLoads(2)
    assert loads.hear(0, LoadStat(1, 2, 100, 1000), 10.0) is None
    assert loads.hear(1, LoadStat(3, 4, 300, 1000), 11.0) == Load(waiting=6.0, running=4.0, kv_usage=0.2)
    assert loads.hear(1, LoadStat(3, 4, 300, 0), 12.0) == Load(waiting=6.0, running=4.0)
    assert loads.hear(1, LoadStat(0, 0, 0, 1000), 13.5) is None, "of the first is nothing known any more"


def test_they_are_advertised_by_their_own_port() -> None:
    source = {
        "publisher": "zmq",
        "endpoint_port_base": 5557,
        "dp_size": 2,
        "load_endpoint_port_base": 6000,
        "load_topic": "load",
    }
    found = read_publishers(msgspec.json.encode({"kv_events": source}), SGLANG_PATH, "10.0.0.1")
    assert [one.loads for one in found] == ["tcp://10.0.0.1:6000", "tcp://10.0.0.1:6001"]
    source["load_endpoint_port_base"] = "6000"
    assert read_publishers(msgspec.json.encode({"kv_events": source}), SGLANG_PATH, "h")[0].loads is None


def test_a_page_counts_again_when_nothing_is_pushed_any_more() -> None:
    store: Datastore = store_of("one")
    (endpoint,) = store.endpoints
    page = Load(waiting=9.0, running=9.0, kv_usage=0.9)
    store.observe(endpoint, page, 100.0, 0.05)
    store.observe_pushed(endpoint, Load(waiting=1.0, running=2.0), 100.1)
    store.observe(endpoint, page, 100.2, 0.05)
    assert store.pool(100.2).waiting.tolist() == [1.0]
    store.observe_pushed(endpoint, Load(waiting=1e12), 101.0)
    assert store.pool(101.0).waiting.tolist() == [1.0], "that makes no sense"
    store.observe(endpoint, page, 100.2 + PUSHED_COUNTS, 0.05)
    assert store.pool(104.0).waiting.tolist() == [9.0]
