"""The handle's life: sharing, draining, SIGTERM, and what is wrong with what was asked."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

import registry
from discovery.instance import Instance, InstanceStatus
from registry.contract import Contract
from registry.registration import Announcement, MembershipRegistry
from tests.eventually import eventually


class Ledger:
    """A `Membership` that remembers what it was told; `broken` refuses everything."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.broken = False
        self.at_update: Callable[[], object] = lambda: None

    async def join(self, instance: Instance) -> Instance:
        await asyncio.sleep(0)
        self._tell(f"join {instance.status}")
        return instance

    def update(self, instance: Instance) -> None:
        self.at_update()
        self._tell(instance.status.value)

    async def leave(self) -> None:
        self.told.append("leave")

    def _tell(self, words: str) -> None:
        if self.broken:
            raise registry.RegistrationError("the ledger is closed")
        self.told.append(words)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def open_over(ledger: Ledger, **announced: Any) -> MembershipRegistry:
    return MembershipRegistry(lambda: ledger, Announcement(**announced))


async def status_of(client: aiohttp.ClientSession, instance: Instance) -> str:
    async with client.get(f"http://{instance.authority}/metadata") as response:
        return response.headers["Instance-Status"]


async def test_awaited_and_entered(ledger: Ledger, client: aiohttp.ClientSession) -> None:
    opened = open_over(ledger)
    handle = await opened.register_instance("dynamo", "decode")
    assert await status_of(client, handle.instance) == "not_ready"
    await handle.close()
    await handle.close()
    async with open_over(ledger).register_instance("dynamo", "decode") as handle:
        handle.set_ready("ready")
        assert await status_of(client, handle.instance) == "ready"
    assert ledger.told == ["join not_ready", "leave", "join not_ready", "ready", "leave"]
    with pytest.raises(aiohttp.ClientConnectionError):
        await status_of(client, handle.instance)


async def test_twice_for_one_key_is_one_handle_until_the_last_release(ledger: Ledger) -> None:
    async with open_over(ledger) as opened:
        first, second = await asyncio.gather(
            opened.register_instance("dynamo", "decode").__aenter__(),
            opened.register_instance("dynamo", "decode").__aenter__(),
        )
        assert first is second
        await first.close()
        second.set_ready("ready")
        await second.close()
        assert ledger.told == ["join not_ready", "ready", "leave"]
        third = await opened.register_instance("dynamo", "decode")
        assert third is not first
        assert third.instance.incarnation != first.instance.incarnation


async def test_closing_the_registry_closes_its_handles(ledger: Ledger) -> None:
    async with open_over(ledger) as opened:
        handles = [await opened.register_instance("dynamo", name) for name in ("a", "b", "b")]
    assert ledger.told.count("leave") == 2
    assert all(handle.closed for handle in handles)
    with pytest.raises(registry.RegistrationError, match="this registry is closed"):
        await opened.register_instance("dynamo", "a")
    with pytest.raises(registry.RegistrationError, match="registration of .* is closed"):
        handles[0].set_ready("ready")
    with pytest.raises(registry.RegistrationError, match="registration of .* is closed"):
        handles[0].set_metadata({})


async def test_a_failed_join_leaves_nothing_behind(ledger: Ledger) -> None:
    ledger.broken = True
    contract = Contract()
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(registry.RegistrationError, match="the ledger is closed"):
        await open_over(ledger).register_instance("dynamo", "decode")
    with pytest.raises(registry.RegistrationError, match="the ledger is closed"):
        await open_over(ledger, contract=contract, port=80).register_instance("dynamo", "decode")
    assert set(os.listdir("/proc/self/fd")) == before
    ledger.broken = False
    async with open_over(ledger, contract=contract, port=80).register_instance("dynamo", "decode") as handle:
        assert handle.instance.port == 80


async def test_the_source_chooses_who_an_instance_is(client: aiohttp.ClientSession) -> None:
    class Cluster(Ledger):
        async def join(self, instance: Instance) -> Instance:
            return replace(instance, id="pod-7", incarnation="uid-7")

    async with open_over(Cluster()).register_instance("dynamo", "decode") as handle:
        assert handle.instance_id() == "pod-7"
        async with client.get(f"http://{handle.instance.authority}/metadata") as response:
            assert response.headers["Instance-Id"] == "pod-7"
            assert response.headers["ETag"].startswith('"uid-7.')


async def test_on_the_way_up_the_worker_speaks_first_on_the_way_down_the_source(ledger: Ledger) -> None:
    async with open_over(ledger).register_instance("dynamo", "decode") as handle:
        seen: list[str] = []
        ledger.at_update = lambda: seen.append(handle._document.current.status.value)
        for status in ("ready", "not_ready", "ready", "draining", "draining"):
            handle.set_ready(status)
        assert seen == ["ready", "ready", "ready", "ready"]
        handle.set_ready("ready")
        assert ledger.told[-2:] == ["draining", "ready"]


async def test_why_it_is_not_ready_is_said_until_it_is(ledger: Ledger, client: aiohttp.ClientSession) -> None:
    async with open_over(ledger).register_instance("dynamo", "decode") as handle:
        for status, reason in (
            ("not_ready", "loading weights"),
            ("not_ready", "compiling"),
            ("ready", None),
            ("not_ready", None),
        ):
            handle.set_ready(status, reason)
            async with client.get(f"http://{handle.instance.authority}/health") as response:
                assert (await response.json()).get("reason") == reason
        assert ledger.told == ["join not_ready", "ready", "not_ready"]


async def test_a_source_that_cannot_be_told_raises_and_the_next_call_tries_again(
    ledger: Ledger, client: aiohttp.ClientSession
) -> None:
    async with open_over(ledger).register_instance("dynamo", "decode") as handle:
        ledger.broken = True
        with pytest.raises(registry.RegistrationError, match="the ledger is closed"):
            handle.set_ready("ready")
        assert await status_of(client, handle.instance) == "not_ready"
        ledger.broken = False
        handle.set_ready("ready")
        ledger.broken = True
        with pytest.raises(registry.RegistrationError, match="the ledger is closed"):
            handle.set_ready("not_ready")
        assert await status_of(client, handle.instance) == "not_ready"
        ledger.broken = False
        handle.set_ready("ready")
        assert ledger.told[-1] == "ready"
        assert await status_of(client, handle.instance) == "ready"


async def test_drain_says_so_waits_for_work_and_leaves(ledger: Ledger, client: aiohttp.ClientSession) -> None:
    handle = await open_over(ledger).register_instance("dynamo", "decode")
    handle.set_ready("ready")
    done = asyncio.Event()

    async def work() -> None:
        with handle.busy():
            await done.wait()

    jobs = [asyncio.create_task(work()) for _ in range(2)]
    await asyncio.sleep(0)
    drain = asyncio.create_task(handle.drain(120))
    await asyncio.sleep(0)
    assert ledger.told[-1] == "draining"
    handle.set_ready("ready")
    assert await status_of(client, handle.instance) == "draining"
    await asyncio.sleep(0.3)
    assert not drain.done()
    done.set()
    await asyncio.wait_for(drain, 90)
    assert all(job.done() for job in jobs)
    assert ledger.told[-2:] == ["draining", "leave"]


async def test_drain_waits_for_work_that_came_while_it_believed_to_be_done(ledger: Ledger) -> None:
    handle = await open_over(ledger).register_instance("dynamo", "decode")
    drain = asyncio.create_task(handle.drain(120))
    await asyncio.sleep(0)
    entered, done = threading.Event(), threading.Event()

    def late() -> None:
        with handle.busy():
            entered.set()
            done.wait(60)

    thread = threading.Thread(target=late)
    thread.start()
    assert entered.wait(60)  # holds up the loop, and with it the drain, until the work has come
    await asyncio.sleep(0.4)
    assert not drain.done()
    done.set()
    await asyncio.wait_for(drain, 90)
    await asyncio.to_thread(thread.join)


async def test_drain_is_bounded_and_ends_held_gets(
    ledger: Ledger, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await open_over(ledger).register_instance("dynamo", "decode")
    url = f"http://{handle.instance.authority}/metadata"
    async with client.get(url) as response:
        etag = response.headers["ETag"]
    held = asyncio.create_task(client.get(url, headers={"If-None-Match": etag, "Prefer": "wait=30"}))
    await eventually(lambda: handle._contract.held == 1)
    started = time.monotonic()
    with handle.busy():
        await asyncio.wait_for(handle.drain(0.3), 90)
    assert time.monotonic() - started > 0.25
    async with await held as response:
        assert response.headers["Instance-Status"] == "draining"
    assert "1 requests are not done 0.3 s after draining began" in caplog.text
    await handle.drain(1)


async def test_leaving_a_cancelled_scope_still_leaves(ledger: Ledger) -> None:
    entered = asyncio.Event()

    async def worker() -> None:
        async with open_over(ledger).register_instance("dynamo", "decode"):
            entered.set()
            await asyncio.sleep(30)

    task = asyncio.create_task(worker())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ledger.told[-1] == "leave"


async def test_a_hundred_lives_leave_no_task_and_no_descriptor(ledger: Ledger) -> None:
    async with open_over(ledger).register_instance("dynamo", "decode"):
        pass
    tasks, descriptors = asyncio.all_tasks(), len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        async with open_over(ledger).register_instance("dynamo", "decode"):
            pass
    assert asyncio.all_tasks() == tasks
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def test_an_address_for_others_is_announced_as_given_and_served_on_every_interface(
    ledger: Ledger, client: aiohttp.ClientSession
) -> None:
    async with open_over(ledger, address="node17", labels={"zone": "a"}).register_instance(
        "d", "c"
    ) as handle:
        assert (handle.instance.address, dict(handle.instance.labels)) == ("node17", {"zone": "a"})
        local = replace(handle.instance, address="127.0.0.1")
        assert await status_of(client, local) == "not_ready"
        assert handle.instance.status is InstanceStatus.NOT_READY
