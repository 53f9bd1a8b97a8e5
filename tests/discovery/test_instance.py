import pytest

from discovery import Instance, InstanceStatus, MetadataUnavailableError
from discovery.instance import check_address, check_component, check_instance_id, check_namespace


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
