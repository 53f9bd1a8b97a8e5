"""What `explain` says of pods that are no instances, and the one warning when nobody is there. In virtual time."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from discovery.errors import DiscoveryError
from discovery.kubernetes import KubernetesSource, LabelSelection, Selection, ServiceSelection
from discovery.source import ComponentKey, component_key
from tests.kubernetes.fake.faults import html
from tests.kubernetes.fake.objects import LABELS, SERVICE
from tests.kubernetes.fake.world import World

KEY = component_key("dynamo", "decode")

IN_VIRTUAL_TIME = True


async def reasons(
    world: World, selection: Selection | None = None, key: ComponentKey = KEY, **options: Any
) -> dict[str, str | None]:
    source = KubernetesSource(world.transport, "default", selection or ServiceSelection(), **options)
    found = await source.explain(key)
    assert len({candidate.id for candidate in found}) == len(found), "one reason each"
    return {candidate.id: candidate.reason for candidate in found}


async def test_all_is_well(world: World) -> None:
    world.pods("a", "b")
    assert await reasons(world) == {}
    assert await reasons(world, port_name="http") == {}


async def test_no_such_service(world: World) -> None:
    world.pods("a")
    assert await reasons(world, ServiceSelection("{component}")) == {
        "decode": "there is no Service called decode in the namespace default"
    }


async def test_a_service_that_selects_nothing(world: World) -> None:
    world.change_service(selector={"app": "decode"})
    assert await reasons(world) == {SERVICE: "the Service selects nothing: no pod has the labels app=decode"}


async def test_pods_that_the_service_does_not_select(world: World) -> None:
    world.pods("a")
    world.change_service(selector={"app": "decode", **LABELS})
    found = await reasons(world)
    assert found["a"] == (f"the Service {SERVICE} selects app=decode,{_text(LABELS)}; the pod has no app")


def _text(labels: dict[str, str]) -> str:
    return ",".join(f"{label}={value}" for label, value in labels.items())


async def test_a_service_without_selector(world: World) -> None:
    stored = world.log.get("services", "default", SERVICE)
    assert stored is not None
    world.log.put("services", {**stored, "spec": {**stored["spec"], "selector": None}})
    assert "no selector" in ((await reasons(world))[SERVICE] or "")


async def test_a_service_without_the_port(world: World) -> None:
    world.pods("a")
    found = await reasons(world, port_name="metadata")
    assert found == {SERVICE: "the Service has no port named 'metadata' (there is 'http')"}


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"ready": False}, "its pod is not ready: its readiness probe"),
        ({"terminating": True}, "its pod is terminating"),
        ({"phase": "Pending", "ready": False}, "its pod is Pending"),
        ({"phase": "Failed", "ready": False}, "its pod is Failed"),
    ],
)
async def test_pods_that_are_not_ready(world: World, how: dict[str, Any], reason: str) -> None:
    world.pod("a")
    world.pod("b", **how)
    found = await reasons(world)
    assert list(found) == ["b"]
    assert (found["b"] or "").startswith(reason)


async def test_a_container_that_waits(world: World) -> None:
    world.pod("a", ready=False)
    stored = world.log.get("pods", "default", "a")
    assert stored is not None
    waiting = {
        "name": "worker",
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
    }
    world.log.put("pods", {**stored, "status": {**stored["status"], "containerStatuses": [waiting]}})
    assert await reasons(world) == {"a": "its container worker waits: ImagePullBackOff: no such image"}


async def test_a_ready_pod_that_no_slice_names(world: World) -> None:
    world.settled = False
    world.pod("a")
    assert "in no EndpointSlice" in ((await reasons(world))["a"] or "")


async def test_by_labels_no_service_carries_them(world: World) -> None:
    world.pods("a")
    found = await reasons(world, LabelSelection())
    assert found == {
        "services": f"there is no Service with the labels {_text(LABELS)} in the namespace default"
    }
    world.change_service(labels=LABELS)
    assert await reasons(world, LabelSelection()) == {}


ENOUGH = {("list", "endpointslices"), ("watch", "endpointslices"), ("get", "services"), ("list", "pods")}


@pytest.mark.parametrize(
    ("missing", "who", "rule"),
    [
        (("get", "services"), "services", 'resources: ["services"]'),
        (("list", "pods"), "pods", 'resources: ["pods"]'),
    ],
)
async def test_without_a_right_it_says_which(
    world: World, missing: tuple[str, str], who: str, rule: str
) -> None:
    world.pods("a")
    world.api.allowed = ENOUGH - {missing}
    found = await reasons(world)
    assert list(found) == [who]
    assert rule in (found[who] or "")
    assert "RoleBinding" in (found[who] or "")


async def test_a_malformed_answer_is_a_reason(world: World) -> None:
    world.api.faults.add(html(200), resource="services")
    assert "cannot be read" in ((await reasons(world))["services"] or "")
    world.transport.down = "connection refused"
    assert "connection refused" in ((await reasons(world))["services"] or "")


async def test_components_are_where_slices_carry_the_labels(world: World) -> None:
    source = KubernetesSource(world.transport, "default", ServiceSelection())
    assert await source.components() == []
    world.change_service(labels=LABELS)
    assert await source.components() == [KEY]
    world.api.allowed = set()
    with pytest.raises(DiscoveryError, match="the EndpointSlices cannot be listed"):
        await source.components()


def warnings(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith("no ready instance")]


async def test_nobody_is_one_warning_with_the_reason(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.pod("a", ready=False)
    async with world.recorder():
        await asyncio.sleep(20)
        assert not warnings(caplog)
        await asyncio.sleep(3600)
        [warning] = warnings(caplog)
        assert warning.startswith(
            "no ready instance of dynamo/decode for 30 s in the Kubernetes namespace default"
        )
        assert "a: its pod is not ready" in warning
        world.pod("a", ready=True)
        await asyncio.sleep(60)
        world.pod("a", ready=False)
        await asyncio.sleep(60)
        assert len(warnings(caplog)) == 2, "once for each time"


@pytest.mark.parametrize("ready_after", [5.0, 20.0])
async def test_somebody_in_time_is_no_warning(
    world: World, caplog: pytest.LogCaptureFixture, ready_after: float
) -> None:
    world.pod("a", ready=False)
    async with world.recorder():
        await asyncio.sleep(ready_after)
        world.pod("a", ready=True)
        await asyncio.sleep(3600)
        assert not warnings(caplog)


async def test_a_lost_api_server_is_one_warning_however_long(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="discovery")
    world.pods("a")
    async with world.recorder():
        world.transport.down = "connection refused"
        world.api.end_watches()
        await asyncio.sleep(1800)
        world.transport.down = None
        await asyncio.sleep(60)
        said = [r.getMessage() for r in caplog.records]
        assert len([text for text in said if "lost the Kubernetes API server" in text]) == 1
        assert len([text for text in said if "answers again" in text]) == 1
