"""Registrations that share one address."""

from dataclasses import replace

from discovery import Instance
from discovery.instance import find_same_address


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
