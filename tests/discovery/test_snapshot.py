"""Instances and snapshots of them: they never change, share untouched parts, and only other parts are compared."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discovery import Instance, InstanceStatus, MetadataUnavailableError
from discovery.copy_on_write import CopyOnWriteDict, FrozenDict, differing_parts
from discovery.events import changed_ids
from discovery.instance import (
    check_address,
    check_component,
    check_instance_id,
    check_namespace,
    find_same_address,
)
from tests.discovery.test_watch import instances

keys = st.integers(0, 300).map("worker-{}".format)
writes = st.lists(st.tuples(keys, st.none() | instances), max_size=30)


def written(
    steps: list[tuple[str, object | None]], into: CopyOnWriteDict[object], model: dict[str, object]
) -> None:
    for key, value in steps:
        if value is None:
            into.pop(key, None)
            model.pop(key, None)
        else:
            into[key] = value
            model[key] = value


@settings(deadline=None)
@given(writes, writes)
def test_it_is_a_dict_and_snapshots_never_change(
    first: list[tuple[str, object | None]], second: list[tuple[str, object | None]]
) -> None:
    filled: CopyOnWriteDict[object] = CopyOnWriteDict()
    model: dict[str, object] = {}
    written(first, filled, model)
    frozen, then = filled.frozen(), dict(model)
    written(second, filled, model)
    assert dict(filled.items()) == model
    for found, expected in ((frozen, then), (filled.frozen(), model)):
        assert found == expected
        assert len(found) == len(expected)
        assert bool(found) == bool(expected)
        assert set(found) == set(expected)
        assert dict(found.items()) == expected
        assert len(list(found.values())) == len(expected)
        assert all(key in found and found[key] is found.get(key) is value for key, value in expected.items())


@settings(deadline=None)
@given(writes, writes)
def test_only_differing_parts_are_compared(
    first: list[tuple[str, object | None]], second: list[tuple[str, object | None]]
) -> None:
    filled: CopyOnWriteDict[object] = CopyOnWriteDict()
    model: dict[str, object] = {}
    written(first, filled, model)
    old, old_model = filled.frozen(), dict(model)
    written(second, filled, model)
    new = filled.frozen()
    differing = {key for key in old_model.keys() | model.keys() if old_model.get(key) != model.get(key)}
    for found in (changed_ids(old, new), changed_ids(old_model, model), changed_ids(old_model, new)):
        assert set(found) == differing
        assert len(found) == len(differing)


def test_one_write_unshares_one_part() -> None:
    filled: CopyOnWriteDict[int] = CopyOnWriteDict()
    for number in range(10_000):
        filled[f"worker-{number}"] = number
    old = filled.frozen()
    assert filled.frozen() is old
    assert not list(differing_parts(old, old))
    filled["worker-7"] = -7
    [(before, after)] = differing_parts(old, filled.frozen())
    assert before.keys() == after.keys()
    assert len(before) < 1_000


def test_a_snapshot_is_a_read_only_mapping() -> None:
    empty: Mapping[str, int] = FrozenDict()
    assert not empty
    assert empty.get("a") is None
    assert "a" not in empty
    with pytest.raises(KeyError):
        empty["a"]
    with pytest.raises(TypeError):
        empty["a"] = 1
    assert repr(empty) == "FrozenDict({})"


def test_updated_shares_the_untouched_parts() -> None:
    written: CopyOnWriteDict[int] = CopyOnWriteDict()
    for number in range(1000):
        written[str(number)] = number
    frozen = written.frozen()
    updated = frozen.updated({"7": -7})
    assert (frozen["7"], updated["7"], len(updated)) == (7, -7, 1000)
    pairs = list(differing_parts(frozen, updated))
    assert len(pairs) == 1
    assert frozen.updated({}).parts == frozen.parts


def an_instance(**changes: object) -> Instance:
    values: dict[str, object] = {
        "id": "a",
        "namespace": "prod",
        "component": "decode",
        "address": "10.0.0.1",
        "port": 8000,
        "incarnation": "one",
    }
    return Instance(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a", "prod", "a-b", "0a", "x" * 63])
def test_dns_labels_are_namespaces_and_components(name: str) -> None:
    assert check_namespace(name) == name
    assert check_component(name) == name


@pytest.mark.parametrize("name", ["", "A", "a/b", "a.b", "-a", "a-", "x" * 64, "a b", "ä", "a\n", None, 5])
def test_other_names_are_errors_that_name_the_rule(name: str) -> None:
    with pytest.raises(ValueError, match="namespace .* is not a DNS-1123 label"):
        check_namespace(name)
    with pytest.raises(ValueError, match="component .* is not a DNS-1123 label"):
        check_component(name)


@pytest.mark.parametrize("name", ["pod-0", "pod.example", "x" * 200])
def test_dns_subdomains_are_instance_ids(name: str) -> None:
    assert check_instance_id(name) == name


@pytest.mark.parametrize("name", ["", "..", "../etc", "a/b", "A", ".a", "a.", "x" * 201])
def test_other_instance_ids_are_errors(name: str) -> None:
    with pytest.raises(ValueError, match="not a DNS-1123 subdomain"):
        check_instance_id(name)


def test_an_unknown_status_word_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="'up' is not an instance status; expected one of 'ready', 'not_ready', 'draining'"
    ):
        InstanceStatus("up")


def test_ipv6_addresses_are_bracketed() -> None:
    assert an_instance(address="fd00::1").authority == "[fd00::1]:8000"
    assert an_instance().authority == "10.0.0.1:8000"
    assert an_instance(address="worker.example").authority == "worker.example:8000"


def test_the_reader_is_not_part_of_equality() -> None:
    class Reader:
        async def read(self, instance: Instance) -> dict[str, object]:
            return {}

    assert an_instance(reader=Reader()) == an_instance()
    assert hash(an_instance(labels={"a": "b"})) == hash(an_instance(labels={"a": "b"}))


async def test_an_instance_without_a_reader_raises() -> None:
    with pytest.raises(MetadataUnavailableError, match="has no metadata reader"):
        await an_instance().metadata()


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "fd00::1", "localhost", "node_17", "Worker.Example", "a" * 63]
)
def test_host_names_and_ip_addresses_are_addresses(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize(
    ("address", "words"),
    [
        *(
            (wrong, "neither a host name nor an IP address")
            for wrong in ("", "a b", "a..b", "h:80", "[::1]", "ä")
        ),
        *(
            (wrong, "neither a host name")
            for wrong in ("a" * 64, "a." * 130 + "b", "x/y", "u@h", "a\n", "::1::")
        ),
        ("fe80::1%eth0", "has a zone, which only this machine knows"),
        ("0.0.0.0", "nobody can reach '0.0.0.0'"),
        ("::", "nobody can reach '::'"),
    ],
)
def test_other_addresses_are_errors_that_say_why(address: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_address(address)


@pytest.mark.parametrize("address", ["foo:bar", "fe80::1%lo", ":", "a b"])
def test_no_address_makes_the_authority_raise(address: str) -> None:
    assert an_instance(address=address).authority.endswith(":8000")


def at(instance_id: str, address: str, port: int = 8000, node: str | None = None) -> Instance:
    return Instance(instance_id, "prod", "decode", address, port, "one", node=node)


def test_one_address_and_port_is_one_server() -> None:
    several = [at("a", "10.0.0.1"), at("b", "10.0.0.1"), at("c", "10.0.0.1"), at("d", "10.0.0.1", 8001)]
    assert find_same_address(several) == {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"]}


def test_a_known_serving_port_counts_instead_of_the_contracts_port() -> None:
    one, other = (replace(at(i, "10.0.0.1", port), serving_port=8000) for i, port in (("a", 1), ("b", 2)))
    assert find_same_address([one, other]) == {"a": ["b"], "b": ["a"]}
    assert find_same_address([one, replace(other, serving_port=8001)]) == {}


def test_containers_with_addresses_of_their_own_are_several() -> None:
    assert find_same_address([at("a", "10.0.0.1"), at("b", "10.0.0.2"), at("c", "host")]) == {}


def test_loopback_addresses_of_different_machines_differ() -> None:
    one, other, third = (
        at("a", "127.0.0.1", node="x"),
        at("b", "127.0.0.1", node="y"),
        at("c", "127.0.0.1", node="x"),
    )
    assert find_same_address([one, other, third]) == {"a": ["c"], "c": ["a"]}
    assert find_same_address([at("a", "localhost", node="x"), at("b", "localhost", node="y")]) == {}
    assert find_same_address([at("a", "10.0.0.1", node="x"), at("b", "10.0.0.1", node="y")]) == {
        "a": ["b"],
        "b": ["a"],
    }
