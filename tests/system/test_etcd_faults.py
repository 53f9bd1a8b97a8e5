"""What goes wrong between workers, readers and a real etcd: each is killed, frozen, cut off, emptied."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import discovery
import discovery.blocking
import registry
import registry.blocking
from discovery import DiscoveryTimeoutError, InstanceUpdatedEvent, RegistrationError, SourceDiscovery
from discovery.etcd.client import EtcdTimings
from discovery.etcd.source import EtcdSource
from discovery.etcd.url import parse_etcd_url
from discovery.watch import WatchHealth, WatchState
from registry import InstanceHandle
from tests.eventually import asked_until, eventually
from tests.kubernetes.fake.chaos_proxy import ChaosProxy
from tests.kubernetes.fake.event_recorder import EventRecorder, recording_events
from tests.started import next_line, started
from tests.system.etcd_administrator import EtcdAdministrator
from tests.system.etcd_process import EtcdProcess
from tests.system.patient_client import patient_client

WORKER = """
import asyncio, os, sys, time
import registry

async def main():
    async with registry.open(sys.argv[1], instance_id=sys.argv[2]).register_instance("dynamo", "decode") as worker:
        worker.set_metadata({"model": {"name": "m"}})
        worker.set_ready("ready")
        print("up", flush=True)
        if sys.argv[3:] == ["fork"]:
            child = os.fork()
            if not child:
                time.sleep(600)
            print(child, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""
FAST = EtcdTimings(call=5.0, probe=0.3, backoff=(0.05, 0.3), recovery=10.0)
"""A process that gets no processor for three seconds is no outage."""
SHORT = "ttl=2s"
"""Of leases that a test lets expire."""


@pytest.fixture
async def etcd() -> AsyncIterator[EtcdProcess]:
    async with EtcdProcess() as running:
        yield running


@pytest.fixture
def admin(etcd: EtcdProcess) -> EtcdAdministrator:
    return EtcdAdministrator(etcd)


@pytest.fixture
def url(etcd: EtcdProcess) -> str:
    """A worker that gets no processor for some seconds keeps its lease."""
    return f"{etcd.url}/test?ttl=15s"


@asynccontextmanager
async def a_worker(url: str, instance_id: str) -> AsyncIterator[InstanceHandle]:
    async with registry.open(url, instance_id=instance_id).register_instance("dynamo", "decode") as handle:
        handle.set_ready("ready")
        yield handle


@asynccontextmanager
async def a_worker_process(
    url: str, instance_id: str, *arguments: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    async with started(sys.executable, "-c", WORKER, url, instance_id, *arguments) as process:
        assert await next_line(process) == "up\n"
        yield process


@asynccontextmanager
async def a_reader(url: str, *, metadata: bool = False) -> AsyncIterator[EventRecorder]:
    source = EtcdSource(parse_etcd_url(url), FAST)
    async with (
        SourceDiscovery(source, client=patient_client()) as service,
        recording_events(service, metadata=metadata) as recorder,
    ):
        yield recorder


def is_degraded(recorder: EventRecorder) -> bool:
    return recorder.stream.health.state is WatchState.DEGRADED


async def until_synced(recorder: EventRecorder) -> None:
    await eventually(lambda: not is_degraded(recorder))


async def test_a_killed_worker_is_unreachable_at_once_and_gone_when_its_lease_expires(
    etcd: EtcdProcess,
) -> None:
    url = f"{etcd.url}/test?ttl=8s"
    async with a_worker_process(url, "w-0") as process, a_reader(url, metadata=True) as recorder:
        await eventually(lambda: recorder.knows("w-0"))
        process.send_signal(signal.SIGKILL)
        await eventually(lambda: not recorder.knows("w-0"))
        assert recorder.transitions() == ["+w-0", "~w-0", "-w-0:deleted"]
        unreachable = recorder.events[1][1]
        assert isinstance(unreachable, InstanceUpdatedEvent)
        assert not unreachable.new.reachable


async def test_a_killed_workers_id_is_free_when_its_lease_has_expired(etcd: EtcdProcess, url: str) -> None:
    async with a_worker_process(f"{etcd.url}/test?{SHORT}", "w-0") as process:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    async with a_worker(url, "w-0"), a_reader(url) as recorder:
        await eventually(lambda: recorder.knows("w-0"))


async def test_a_living_workers_id_is_refused(url: str) -> None:
    async with a_worker_process(url, "w-0"):
        with pytest.raises(RegistrationError, match="'w-0' is held in etcd by a living process"):
            await registry.open(url, instance_id="w-0").register_instance("dynamo", "decode")


async def test_a_record_without_a_lease_is_in_the_way_for_ever(admin: EtcdAdministrator, url: str) -> None:
    await admin.put("/test/dynamo/decode/w-0", record("w-0"))
    with pytest.raises(RegistrationError, match="remove it: etcdctl del /test/dynamo/decode/w-0"):
        await registry.open(url, instance_id="w-0").register_instance("dynamo", "decode")


async def test_a_forked_child_keeps_no_dead_worker_alive(etcd: EtcdProcess) -> None:
    url = f"{etcd.url}/test?{SHORT}"
    async with a_worker_process(url, "w-0", "fork") as process, a_reader(url) as recorder:
        assert process.stdout is not None
        child = int(await process.stdout.readline())
        try:
            await eventually(lambda: recorder.knows("w-0"))
            process.send_signal(signal.SIGKILL)
            await eventually(lambda: not recorder.knows("w-0"))
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


async def test_without_await_beside_a_running_loop(url: str) -> None:
    """Two loops in two threads use gRPC at once."""

    def register_and_watch() -> str:
        with (
            registry.blocking.open(url, instance_id="w-1") as workers,
            workers.register_instance("dynamo", "decode") as worker,
            discovery.blocking.open(url) as service,
            service.watch("dynamo", "decode") as stream,
        ):
            worker.set_ready("ready")
            return next(event.instance_id for event in stream if event.instance_id == "w-1")

    async with a_worker(url, "w-0"), a_reader(url) as recorder:
        assert await asyncio.to_thread(register_and_watch) == "w-1"
        await eventually(lambda: recorder.names == {"w-0"})


async def test_etcd_is_killed_and_comes_back_with_its_data(etcd: EtcdProcess, url: str) -> None:
    """The last set serves meanwhile, and nobody is removed."""
    async with a_worker(url, "w-0") as handle, a_reader(url) as recorder:
        await eventually(lambda: recorder.knows("w-0"))
        etcd.kill()
        await eventually(lambda: is_degraded(recorder))
        assert recorder.knows("w-0")
        refused = f"etcd at {etcd.member}: Connection refused"
        await eventually(lambda: recorder.stream.health.reason == refused)
        handle.set_ready("not_ready")  # while nobody can be told
        await etcd.start()
        await until_synced(recorder)
        await eventually(lambda: not recorder.knows("w-0"))
        handle.set_ready("ready")
        await eventually(lambda: recorder.knows("w-0"))
        assert recorder.transitions() == ["+w-0", "-w-0:not_ready", "+w-0"]


async def test_etcd_comes_back_empty(etcd: EtcdProcess, url: str) -> None:
    """The living register again, as the lives that they were, and are not removed meanwhile; the dead are."""
    async with a_worker_process(url, "dead") as process, a_worker(url, "alive"), a_reader(url) as recorder:
        await eventually(lambda: recorder.names == {"dead", "alive"})
        before = recorder.instances["alive"].incarnation
        etcd.kill()
        process.kill()
        etcd.forget()
        await etcd.start()
        await eventually(lambda: not recorder.knows("dead"))
        assert recorder.names == {"alive"}
        assert recorder.instances["alive"].incarnation == before
        assert "-alive:deleted" not in recorder.transitions()


async def test_an_etcd_that_nobody_writes_to_is_no_fault(url: str) -> None:
    """etcd answers no progress request for a watch that begins at a revision which does not exist yet."""
    async with a_reader(url) as recorder:
        await until_synced(recorder)
        since = recorder.stream.health.since
        await asyncio.sleep(FAST.call + 10 * FAST.probe)
        assert recorder.stream.health == WatchHealth(WatchState.SYNCED, since)


async def test_a_frozen_etcd_is_noticed(etcd: EtcdProcess, url: str) -> None:
    """Its connections stay open: only an answer proves that it runs."""
    async with a_worker(url, "w-0"), a_reader(url) as recorder:
        await eventually(lambda: recorder.knows("w-0"))
        etcd.freeze()
        try:
            await eventually(lambda: is_degraded(recorder))
            assert recorder.knows("w-0")
            async with discovery.open(url) as service:
                with pytest.raises(DiscoveryTimeoutError, match="did not sync"):
                    await service.list_instances("dynamo", "decode", timeout=1.0)
        finally:
            etcd.thaw()
        await until_synced(recorder)
        assert recorder.transitions() == ["+w-0"]


async def test_leases_that_died_in_a_frozen_etcd_remove_nobody(etcd: EtcdProcess) -> None:
    url = f"{etcd.url}/test?ttl=8s"
    async with a_worker(url, "w-0"), a_reader(url) as recorder:
        await eventually(lambda: recorder.knows("w-0"))
        [before] = (await etcd.keys()).values()
        etcd.freeze()
        await asyncio.sleep(9)  # longer than the lease
        etcd.thaw()
        await asked_until(
            etcd.keys, lambda found: any(stored.lease != before.lease for stored in found.values())
        )
        await until_synced(recorder)
        assert recorder.transitions() == ["+w-0"]


async def test_a_compaction_during_a_gap_loses_nothing(
    etcd: EtcdProcess, admin: EtcdAdministrator, url: str
) -> None:
    async with ChaosProxy(("127.0.0.1", etcd.port)) as proxy:
        through_proxy = url.replace(str(etcd.port), str(proxy.port))
        async with a_worker(url, "stays"), a_reader(through_proxy) as recorder:
            async with a_worker(url, "goes"):
                await eventually(lambda: recorder.names == {"stays", "goes"})
                await proxy.refuse()
                proxy.reset()
                await eventually(lambda: is_degraded(recorder))
            async with a_worker(url, "comes-and-goes"):
                pass
            async with a_worker(url, "comes"):
                # a worker that leaves does not wait for etcd's answer for ever
                await asked_until(
                    etcd.keys,
                    lambda found: set(found) == {f"/test/dynamo/decode/{id}" for id in ("stays", "comes")},
                )
                await admin.compact()
                recorder.start = len(recorder.events)
                await proxy.open()
                await eventually(lambda: recorder.names == {"stays", "comes"})
                told = [word for word in recorder.transitions() if word != "~goes"]  # unreachable first
                assert sorted(told) == ["+comes", "-goes:deleted"]


async def test_a_lost_lease_is_granted_again(etcd: EtcdProcess, admin: EtcdAdministrator, url: str) -> None:
    async with a_worker(url, "w-0") as handle, a_reader(url) as recorder:
        await eventually(lambda: recorder.knows("w-0"))
        [stored] = (await etcd.keys()).values()
        await admin.revoke(stored.lease)
        await eventually(lambda: "-w-0:deleted" in recorder.transitions())
        await eventually(lambda: recorder.knows("w-0"))
        [again] = (await etcd.keys()).values()
        assert again.lease not in (0, stored.lease)
        handle.set_ready("draining")
        await eventually(lambda: not recorder.knows("w-0"))


async def test_a_removed_key_comes_back(etcd: EtcdProcess, admin: EtcdAdministrator, url: str) -> None:
    async with a_worker(url, "w-0"), a_reader(url) as recorder:
        await eventually(lambda: recorder.knows("w-0"))
        await admin.delete("/test/dynamo/decode/w-0")
        await eventually(lambda: "-w-0:deleted" in recorder.transitions())
        await eventually(lambda: recorder.knows("w-0"))


async def test_two_prefixes_are_two_worlds(etcd: EtcdProcess) -> None:
    async with (
        a_worker(f"{etcd.url}/a?ttl=15s", "of-a"),
        a_worker(f"{etcd.url}/ab?ttl=15s", "of-ab"),
        a_reader(f"{etcd.url}/a") as a,
        a_reader(f"{etcd.url}/ab") as ab,
    ):
        await eventually(lambda: a.names == {"of-a"})
        await eventually(lambda: ab.names == {"of-ab"})


async def test_a_leaving_worker_does_not_wait_for_a_frozen_etcd(etcd: EtcdProcess) -> None:
    """Its lease removes it."""
    url = f"{etcd.url}/test?{SHORT}"
    async with a_reader(url) as recorder:
        async with a_worker(url, "w-0"):
            await eventually(lambda: recorder.knows("w-0"))
            etcd.freeze()
        etcd.thaw()
        await eventually(lambda: not recorder.knows("w-0"))


async def test_more_workers_than_fit_into_one_answer(admin: EtcdAdministrator, url: str) -> None:
    names = {f"w-{number}" for number in range(600)}
    await admin.put_all({f"/test/dynamo/decode/{name}": record(name) for name in names})
    async with a_reader(url) as recorder:
        await eventually(lambda: recorder.names == names)


async def test_values_too_large_for_one_answer_are_read_in_smaller_ones(
    admin: EtcdAdministrator, url: str
) -> None:
    await admin.put_all({f"/test/dynamo/decode/large-{number}": b"x" * 1_400_000 for number in range(20)})
    await admin.put("/test/dynamo/decode/w-0", record("w-0"))
    async with a_reader(url) as recorder:
        await eventually(lambda: recorder.names == {"w-0"})


async def test_a_record_that_is_none_is_explained(admin: EtcdAdministrator, url: str) -> None:
    wrong = {
        "junk": (b"junk", "its record cannot be used: not a valid record: Invalid JSON"),
        "\x1b[31m": (b"{}", "its record cannot be used: not a valid record: instance_id"),
        "a/b": (b"{}", "its record cannot be used"),
        "other": (record("w-1"), "a foreign record"),
        "large": (b'{"x": "' + b"x" * 70_000 + b'"}', "the record is larger than 65536 bytes"),
        "port": (record("port").replace(b":80,", b":99999,"), "port"),
        "w-0\x00": (record("w-1"), "a foreign record"),
    }
    async with a_reader(url) as recorder, discovery.open(url) as service:
        for key, (value, _) in wrong.items():
            await admin.put(f"/test/dynamo/decode/{key}", value)
        await admin.put("/test/dynamo/decode/w-0", record("w-0"))
        await eventually(lambda: recorder.names == {"w-0"})
        explained = await service.explain("dynamo", "decode")
        reasons = {candidate.id: str(candidate.reason) for candidate in explained.candidates}
        assert len(reasons) == len(wrong) + 1
        for key, (_, reason) in wrong.items():
            assert reason in reasons[key.encode("unicode_escape").decode()]
        assert str(explained).replace("\n", "").isprintable()


async def test_with_a_user_that_may_do_no_more_than_it_must(
    etcd: EtcdProcess, admin: EtcdAdministrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admin.enable_users("worker", "s3cret", "/test/")
    monkeypatch.setenv("ETCDCTL_PASSWORD", "s3cret")
    url = f"{etcd.url}/test?ttl=15s&user=worker"
    async with a_worker(url, "w-0"), a_reader(url) as recorder:
        await eventually(lambda: recorder.knows("w-0"))
        etcd.kill()  # it forgets its tokens
        await eventually(lambda: is_degraded(recorder))
        etcd.launch()
        await until_synced(recorder)
        assert recorder.knows("w-0")
    with pytest.raises(discovery.ForbiddenError, match="permission denied") as refused:
        async with discovery.open(f"{etcd.url}/elsewhere?user=worker") as service:
            await service.list_instances("dynamo", "decode", timeout=90.0)
    with pytest.raises(discovery.ForbiddenError, match="this cluster wants a user"):
        async with discovery.open(f"{etcd.url}/test") as service:
            await service.list_instances("dynamo", "decode", timeout=90.0)
    monkeypatch.setenv("ETCDCTL_PASSWORD", "wr0ng")
    with pytest.raises(RegistrationError, match="authentication failed") as denied:
        await registry.open(url).register_instance("dynamo", "decode")
    assert "wr0ng" not in f"{denied.value!r} {denied.value.__cause__!r} {refused.value!r}"


async def test_a_member_dies_and_the_next_one_answers() -> None:
    members = [EtcdProcess(name=f"m{number}") for number in range(3)]
    cluster = ",".join(f"{member.name}={member.peer_url}" for member in members)
    try:
        for member in members:
            member.peers = cluster
            member.launch()
        for member in members:
            await member.wait_serving()
        hosts = ",".join(member.member for member in members)
        url = f"etcd://{hosts}/test?ttl=15s"
        async with a_worker(url, "w-0"), a_reader(url) as recorder:
            await eventually(lambda: recorder.knows("w-0"))
            members[0].kill()
            async with a_worker(url, "w-1"):
                await eventually(lambda: recorder.names == {"w-0", "w-1"})
                members[1].freeze()  # no quorum any more
                await eventually(lambda: is_degraded(recorder))
                members[1].thaw()
                await until_synced(recorder)
                await eventually(lambda: recorder.names == {"w-0", "w-1"})
    finally:
        for member in members:
            await member.__aexit__(None, None, None)


async def test_components_are_found_for_a_misspelt_name(url: str) -> None:
    async with a_worker(url, "w-0"), discovery.open(url) as service:
        assert str(await service.explain("dynamo", "decoed")) == (
            "nothing is registered as dynamo/decoed; there is dynamo/decode"
        )


def record(instance_id: str) -> bytes:
    return (
        f'{{"version":1,"instance_id":"{instance_id}","namespace":"dynamo","component":"decode",'
        '"incarnation":"one","address":"127.0.0.1","port":80,"status":"ready","labels":{}}'
    ).encode()
