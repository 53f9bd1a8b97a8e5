"""A registry in one process, seen by the discovery of the same process."""

import asyncio

import pytest

import discovery
import registry
from discovery.memory import named_store
from registry.memory import MemoryMembership

URL = "memory://registry-tests"


async def test_a_taken_id_is_refused_and_leaves_the_owner_alone() -> None:
    async with (
        registry.open(URL, instance_id="decode-0") as first,
        registry.open(URL, instance_id="decode-0") as second,
        discovery.open(URL) as found,
    ):
        owner = await first.register_instance("dynamo", "taken")
        owner.set_ready("ready")
        with pytest.raises(registry.RegistrationError, match="'decode-0' is taken in dynamo/taken"):
            await second.register_instance("dynamo", "taken")
        assert await found.list_instances("dynamo", "taken") == [owner.instance]
        await owner.close()
        await second.register_instance("dynamo", "taken")


async def test_membership_leaves_twice() -> None:
    store = named_store("twice")
    membership = MemoryMembership(store)
    await membership.leave()
    await membership.join(discovery.Instance("a", "dynamo", "decode", "127.0.0.1", 1, "life1"))
    await membership.leave()
    await membership.leave()
    assert not store.snapshot(discovery.ComponentKey("dynamo", "decode")).known


async def test_status_from_another_thread_reaches_watchers() -> None:
    async with (
        discovery.open(URL) as found,
        registry.open(URL).register_instance("dynamo", "threads") as handle,
        found.watch("dynamo", "threads") as stream,
    ):
        await asyncio.to_thread(handle.set_ready, "ready")
        event = await asyncio.wait_for(anext(stream), 90)
        assert event.instance == handle.instance
        with pytest.raises(ValueError, match="'up' is not an instance status"):
            await asyncio.to_thread(handle.set_ready, "up")


async def test_keys_that_readers_ignore_are_said_once_and_by_explain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with discovery.open(URL) as found, registry.open(URL) as opened:
        handle = await opened.register_instance("dynamo", "misspelt")
        misspelt = {"modle": {"name": "m"}, "transport": {"http": {"prot": 8000}}}
        for document in (misspelt, misspelt, {"model": {"name": "m"}}, misspelt):
            handle.set_metadata(document)
        handle.set_ready("ready")
        said = (
            "'modle' is not a known key, did you mean model?; transport.http.'prot' is not a known key, "
            "did you mean transport.http.port?"
        )
        lines = [record.getMessage() for record in caplog.records]
        assert lines == [f"{handle.instance_id()}: in its metadata {said}"] * 2
        explained = await found.explain("dynamo", "misspelt")
        assert str(explained) == f"{handle.instance_id()} is an instance: in its metadata {said}"
        async with found.watch("dynamo", "misspelt", metadata=True) as stream:
            await anext(stream)
            assert str(await found.explain("dynamo", "misspelt")) == str(explained)
