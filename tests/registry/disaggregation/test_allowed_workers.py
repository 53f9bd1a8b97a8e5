"""Who may be asked for a prompt: what the operator lists, and what discovery finds at the moment."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import discovery
import registry
from registry.disaggregation.allowed_workers import AllowedWorkers, read_listed, read_target
from registry.disaggregation.prefill import PrefillLimits
from tests.registry.disaggregation.conftest import bench

Eventually = Callable[..., Awaitable[float]]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("10.0.0.1:8000", ("10.0.0.1", 8000)),
        (" [FD00::1]:8000 ", ("fd00::1", 8000)),
        ("http://Pod-1.ns:80", ("pod-1.ns", 80)),
    ],
)
def test_one_address(text: str, target: tuple[str, int]) -> None:
    assert read_target([text]) == target


@pytest.mark.parametrize(
    "text", ["10.0.0.1", "a b:80", "a:70000", "fd00::1:80", "a:80/x", "user@a:80", "127.1:80", "a:0"]
)
def test_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"host|address"):
        read_target([text])


def test_a_list_has_hosts_and_addresses() -> None:
    allowed = AllowedWorkers([read_listed("10.0.0.1"), read_listed("a.b:8000"), read_listed("[fd00::1]")])
    assert allowed.allows(("10.0.0.1", 1))
    assert allowed.allows(("a.b", 8000))
    assert not allowed.allows(("a.b", 8001))
    assert allowed.allows(("fd00::1", 9))
    assert not allowed.allows(("10.0.0.2", 1))


async def test_discovery_says_who_is_a_worker_and_when_one_is_lost(eventually: Eventually) -> None:
    url = "memory://prefill-workers"
    allowed = AllowedWorkers()
    async with (
        bench(allowed=allowed, limits=PrefillLimits(timeout=3600)) as made,
        discovery.open(url) as service,
        service.watch("prod", "prefill") as stream,
    ):
        following = asyncio.ensure_future(allowed.follow(stream))
        async with made.post() as answer:
            assert answer.headers["x-adsum-prefill-fallback"] == "refused"
        async with registry.open(url).register_instance("prod", "prefill") as handle:
            handle.set_ready("ready")
            await eventually(lambda: allowed.allows(("127.0.0.1", made.prefill.port)))
            async with made.post() as answer:
                assert "x-adsum-prefill-fallback" not in answer.headers
            made.prefill.go.clear()
            asking = asyncio.ensure_future(made.post().__aenter__())
            await eventually(lambda: len(made.prefill.seen) == 2)
        assert (await asking).headers["x-adsum-prefill-fallback"] == "lost"
        following.cancel()
