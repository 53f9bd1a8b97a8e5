"""The behaviour that every source must have.

The numbers are those of the testable behaviours that this suite was drawn from: sync and snapshot 1-5, watch 37-39,
identity 21-22, metadata 23-26, registry 31-36, operation 40-42.
"""

import asyncio
from collections.abc import Callable

import pytest

from discovery import (
    DiscoveryTimeoutError,
    InstanceAddedEvent,
    InstanceEventStream,
    InstanceRemovedEvent,
    InstanceStatus,
    InstanceUpdatedEvent,
    RegistrationError,
    ServiceDiscovery,
    wait_for_instances,
)
from discovery.service import SourceDiscovery
from registry import Contract, InstanceHandle, ServiceRegistry
from tests.eventually import eventually
from tests.fake_worker import FakeWorker, serving

OpenRegistry = Callable[..., ServiceRegistry]


async def a_worker(
    open_registry: OpenRegistry, *, component: str = "decode", **options: object
) -> InstanceHandle:
    handle = await open_registry(**options).register_instance("prod", component)
    handle.set_metadata({"model": {"name": "m"}})
    handle.set_ready("ready")
    return handle


async def next_event(stream: InstanceEventStream, within: float = 90.0) -> object:
    async with asyncio.timeout(within):
        return await anext(stream)


async def nothing_more(stream: InstanceEventStream, for_seconds: float = 0.6) -> None:
    with pytest.raises(TimeoutError):
        await next_event(stream, for_seconds)


async def test_01_entering_is_synced_with_each_ready_instance_once(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    handles = [await a_worker(open_registry) for _ in range(3)]
    async with service.watch("prod", "decode") as stream:
        expected = {handle.instance_id() for handle in handles}
        assert set(stream.instances) == expected
        events = [await next_event(stream) for _ in range(3)]
        assert all(isinstance(event, InstanceAddedEvent) for event in events)
        assert {event.instance_id for event in events} == expected  # type: ignore[attr-defined]
        await nothing_more(stream)


async def test_02_no_registration_is_an_empty_set_without_waiting(service: ServiceDiscovery) -> None:
    async with asyncio.timeout(90), service.watch("prod", "decode") as stream:
        assert stream.instances == {}
        assert await service.list_instances("prod", "decode") == []


async def test_04_nothing_is_lost_between_list_and_watch(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    handle = await a_worker(open_registry)
    async with service.watch("prod", "decode") as stream:
        assert isinstance(await next_event(stream), InstanceAddedEvent)
        await handle.close()
        removed = await next_event(stream)
        assert isinstance(removed, InstanceRemovedEvent)
        assert removed.reason in ("deleted", "terminating")


async def test_05_a_returned_instance_does_not_change(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    handle = await a_worker(open_registry)
    [before] = await service.list_instances("prod", "decode")
    handle.set_ready("not_ready")
    assert before.status is InstanceStatus.READY


@pytest.mark.parametrize(("status", "reason"), [("not_ready", "not_ready"), ("draining", "terminating")])
async def test_readiness_is_membership_and_its_loss_has_a_reason(
    service: ServiceDiscovery, open_registry: OpenRegistry, status: str, reason: str
) -> None:
    handle = await open_registry().register_instance("prod", "decode")
    async with service.watch("prod", "decode") as stream:
        await nothing_more(stream, 0.3)
        handle.set_ready("ready")
        assert isinstance(await next_event(stream), InstanceAddedEvent)
        handle.set_ready(status)
        removed = await next_event(stream)
        assert isinstance(removed, InstanceRemovedEvent)
        assert removed.reason == reason
        handle.set_ready(InstanceStatus.READY)
        assert isinstance(await next_event(stream), InstanceAddedEvent)


async def test_21_another_incarnation_of_an_id_is_removed_then_added(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    first = await a_worker(open_registry, instance_id="w-0")
    async with service.watch("prod", "decode", metadata=True) as stream:
        added = await next_event(stream)
        assert isinstance(added, InstanceAddedEvent)
        await first.close()
        second = await a_worker(open_registry, instance_id="w-0")
        second.set_metadata({"model": {"name": "second"}})
        removed, again = await next_event(stream), await next_event(stream)
        while isinstance(again, InstanceUpdatedEvent):  # the first life's last words
            again = await next_event(stream)
        while isinstance(removed, InstanceUpdatedEvent):
            removed, again = again, await next_event(stream)
        assert isinstance(removed, InstanceRemovedEvent)
        assert isinstance(again, InstanceAddedEvent)
        assert again.instance.incarnation != added.instance.incarnation
        assert (await again.instance.metadata())["model"]["name"] in ("m", "second")


async def test_22_a_namespace_is_matched_whole(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    await a_worker(open_registry, component="decode")
    await a_worker(open_registry, component="decode-b")
    [only] = await service.list_instances("prod", "decode")
    assert only.component == "decode"
    assert await service.list_instances("pro", "decode") == []
    assert await service.list_instances("prod-decode", "b") == []


async def test_25_a_change_of_metadata_is_an_update_with_a_new_revision(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    handle = await a_worker(open_registry)
    async with service.watch("prod", "decode", metadata=True) as stream:
        added = await next_event(stream)
        assert isinstance(added, InstanceAddedEvent)
        for number in range(20):
            started = asyncio.get_running_loop().time()
            handle.set_metadata({"model": {"name": f"other {number}"}})
            updated = await next_event(stream)
            took = asyncio.get_running_loop().time() - started
            assert isinstance(updated, InstanceUpdatedEvent)
            assert updated.old.revision != updated.new.revision
            assert (await updated.instance.metadata())["Model"] == {"name": f"other {number}"}
            if took < 0.5:
                break
        else:
            raise AssertionError("each took longer than half a second: it is not pushed")


async def test_26_a_worker_that_stops_answering_is_unreachable_not_removed(
    service: ServiceDiscovery, open_registry: OpenRegistry, worker: FakeWorker
) -> None:
    """Its contract's server is gone while its membership stands."""
    async with serving(worker):
        announced = open_registry(address=worker.host, port=worker.port, contract=Contract())
        handle = await announced.register_instance("prod", "decode")
        handle.set_ready("ready")
        worker.headers = {"ETag": '"x.y.1"'}
        stream = service.watch("prod", "decode", metadata=True)
        await stream.__aenter__()
        assert isinstance(await next_event(stream), InstanceAddedEvent)
    updated = await next_event(stream)
    assert isinstance(updated, InstanceUpdatedEvent)
    assert not updated.new.reachable
    assert set(stream.instances) == {handle.instance_id()}
    await stream.aclose()


async def test_31_a_registered_worker_is_no_instance_until_it_is_ready(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    handle = await open_registry().register_instance("prod", "decode")
    assert await service.list_instances("prod", "decode") == []
    [candidate] = (await service.explain("prod", "decode")).candidates
    assert (candidate.id, candidate.is_instance) == (handle.instance_id(), False)
    assert candidate.reason == 'its status is not_ready; it has not called set_ready("ready")'


@pytest.mark.parametrize(
    "wrong", [{"a": object()}, {"a": float("nan")}, {1: 2}, [1], "text", {"a": "x" * 1024 * 1024}]
)
async def test_32_wrong_metadata_raises_and_the_previous_document_stays(
    service: ServiceDiscovery, open_registry: OpenRegistry, wrong: dict[str, object]
) -> None:
    handle = await a_worker(open_registry)
    with pytest.raises((TypeError, ValueError, RegistrationError)):
        handle.set_metadata(wrong)
    [instance] = await service.list_instances("prod", "decode")
    document = await instance.metadata()
    assert document.keys() <= {"model", "labels"}  # a pod's registry publishes its labels
    assert document["model"] == {"name": "m"}


async def test_33_an_invalid_status_raises_and_changes_nothing(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    handle = await a_worker(open_registry)
    with pytest.raises(ValueError, match="'up' is not an instance status"):
        handle.set_ready("up")
    assert len(await service.list_instances("prod", "decode")) == 1


@pytest.mark.parametrize(("namespace", "component"), [("", "decode"), ("prod", "a/b"), ("Prod", "decode")])
async def test_33_invalid_names_raise_before_anything_is_registered(
    open_registry: OpenRegistry, namespace: str, component: str
) -> None:
    with pytest.raises(ValueError, match="DNS-1123"):
        await open_registry().register_instance(namespace, component)


async def test_34_draining_is_reported_before_leaving(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    handle = await a_worker(open_registry)
    async with service.watch("prod", "decode") as stream:
        assert isinstance(await next_event(stream), InstanceAddedEvent)
        await handle.drain(timeout=5.0)
        removed = await next_event(stream)
        assert isinstance(removed, InstanceRemovedEvent)
        assert removed.reason in ("terminating", "deleted")

        async def has_left() -> bool:
            return not (await service.explain("prod", "decode")).candidates

        await eventually(has_left)


async def test_35_twice_on_one_registry_is_one_instance_until_the_last_release(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    worker = open_registry()
    first = await worker.register_instance("prod", "decode")
    second = await worker.register_instance("prod", "decode")
    assert first.instance_id() == second.instance_id()
    first.set_ready("ready")
    await first.close()
    assert len(await service.list_instances("prod", "decode")) == 1
    await second.close()
    assert await service.list_instances("prod", "decode") == []


async def test_two_registries_never_share_an_id(open_registry: OpenRegistry) -> None:
    await a_worker(open_registry, instance_id="w-0")
    with pytest.raises(RegistrationError, match="w-0"):
        await a_worker(open_registry, instance_id="w-0")


async def test_38_a_hundred_streams_opened_and_closed_at_any_moment_leave_no_task(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    await a_worker(open_registry)
    before = len(asyncio.all_tasks())
    for round_ in range(100):
        stream = service.watch("prod", "decode", metadata=round_ % 2 == 0)
        entering = asyncio.create_task(stream.__aenter__())
        for _ in range(round_ % 7):
            await asyncio.sleep(0)
        if round_ % 3 == 0:
            entering.cancel()
        await asyncio.wait([entering])
        async with asyncio.timeout(90):
            await stream.aclose()
    await eventually(lambda: len(asyncio.all_tasks()) <= before)


async def test_40_explain_reports_that_nothing_is_registered(service: ServiceDiscovery) -> None:
    assert str(await service.explain("prod", "decode")) == "nothing is registered as prod/decode"


async def test_40_explain_names_other_components(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    await a_worker(open_registry)
    explanation = str(await service.explain("prod", "decoed"))
    assert explanation == "nothing is registered as prod/decoed; there is prod/decode"


async def test_40_a_survey_counts_what_is_there(
    service: SourceDiscovery, open_registry: OpenRegistry
) -> None:
    assert await service.survey(9, timeout=60) == ([], 0)
    await a_worker(open_registry)
    assert await service.survey(9, timeout=60) == ([(("prod", "decode"), 1, 0)], 0)
    assert await service.survey(0, timeout=60) == ([], 1)


async def test_41_waiting_returns_when_all_are_there_and_stay(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    await a_worker(open_registry)
    waiting = asyncio.create_task(
        wait_for_instances(service, "prod", "decode", count=2, stable_for=0.3, timeout=60)
    )
    await asyncio.sleep(0.2)
    assert not waiting.done()
    started = asyncio.get_running_loop().time()
    await a_worker(open_registry)
    assert len(await waiting) == 2
    assert asyncio.get_running_loop().time() - started >= 0.3


async def test_41_a_wait_that_times_out_says_who_is_missing_and_why(
    service: ServiceDiscovery, open_registry: OpenRegistry
) -> None:
    handle = await open_registry().register_instance("prod", "decode")
    async with service.watch("prod", "decode"):  # synced: the wait does not end before it has looked
        with pytest.raises(
            DiscoveryTimeoutError,
            match=rf"0 of 2 instances(.|\n)*{handle.instance_id()} is not an instance: its ",
        ):
            await wait_for_instances(service, "prod", "decode", count=2, timeout=0.3)
