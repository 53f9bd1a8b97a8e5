from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.process_usage import resident_megabytes
from epp.request.subset import Subset


@pytest.mark.parametrize(
    "hint", ["[fd00::1]:8000", "[fd00::1]", "fd00::1", "fd00:0::0:1", "[FD00:0:0::1]:8000"]
)
@pytest.mark.parametrize("address", ["fd00::1", "[fd00::1]", "FD00::0:1"])
def test_ipv6_is_compared_as_an_address(hint: str, address: str) -> None:
    assert Subset.of([hint]).allows(address, 8000)
    assert not Subset.of([hint]).allows("fd00::2", 8000)


def test_bracketed_ipv6_with_another_port_is_not_allowed() -> None:
    assert not Subset.of(["[fd00::1]:8000"]).allows("fd00::1", 8001)


def test_a_long_hint_is_read() -> None:
    """What is no plain IPv4 is read as an address up to a number; beyond it, as it stands there."""
    hint = ",".join(
        [*(f"[fd01::{number:x}]:8000" for number in range(16_000)), "[FD00::1]:8000", "10.0.0.1:8000"]
    )
    subset = Subset.of([hint])
    for address in ("fd01::0", "fd01::3e7f", "fd00::1", "10.0.0.1"):
        assert subset.allows(address, 8000)
    assert not subset.allows("fd01::3e80", 8000)


def test_hints_are_not_kept() -> None:
    """100 unique ones of a megabyte."""
    Subset.of(["warm"])
    before = resident_megabytes()
    for number in range(100):
        subset = Subset.of(
            [f"{number}" + "a" * 10**6, f"{number}.{'1' * 10**6}:80", f"[{number}{':' * 10**6}]"]
        )
        assert not subset.allows("10.0.0.1", 80)
    assert resident_megabytes() - before < 50


@pytest.mark.parametrize("host", ["h" * 256, "h" * 10**6, ":" * 300])
def test_a_host_that_is_longer_than_any_name_is_nowhere(host: str) -> None:
    subset = Subset.of([host, f"{host}:80"])
    assert not subset.allows("10.0.0.1", 80)
    assert sum(len(name) for name, _ in subset.members) < 1000


@given(st.ip_addresses(), st.integers(0, 65535), st.integers(0, 65535))
def test_a_written_destination_allows_itself_only(ip: Any, port: int, other: int) -> None:
    text = f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"
    subset = Subset.of([text])
    assert subset.allows(str(ip), port)
    assert subset.allows(str(ip), other) is (other == port)
