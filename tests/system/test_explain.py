"""Why a pod is no instance, where only the real server and its controller show it: one reason each."""

from typing import Any

from aiohttp import web

from tests.eventually import asked_until
from tests.kubernetes.fake import objects
from tests.kubernetes.fake.objects import LABELS, SERVICE
from tests.system.cluster import Cluster, pod_address
from tests.system.patient_client import patient_client


async def reasons(cluster: Cluster, **how: Any) -> dict[str, str | None]:
    """By candidate; those that are instances have none."""
    async with cluster.discovering(client=patient_client(), **how) as discovery:
        return {c.id: c.reason for c in (await discovery.explain("dynamo", "decode")).candidates}


async def test_a_pod_that_terminates(cluster: Cluster) -> None:
    await cluster.service()
    pod = await cluster.pod("a")
    await eventually_all_listed(cluster, {"a"})
    await cluster.terminate(pod)
    await asked_until(cluster.endpoints, lambda found: found[pod.uid]["conditions"]["terminating"])
    assert (await reasons(cluster))["a"] == "its pod is terminating"


async def test_a_ready_pod_on_a_node_that_does_not_exist(cluster: Cluster) -> None:
    await cluster.service()
    await cluster.pod("a", node="nowhere")
    found = (await reasons(cluster))["a"] or ""
    assert found.startswith("it is ready and in no EndpointSlice: ")


async def test_an_endpoint_that_is_no_pod(cluster: Cluster) -> None:
    """Slices made by hand for a Service that has no selector."""
    await cluster.service(selector={})
    made = objects.endpoint_slice("by-hand", objects.endpoint(pod_address()))
    await cluster.admin.create("endpointslices", cluster.namespace, made)
    found = await reasons(cluster)
    (stranger,) = (found[name] for name in found if name != SERVICE)
    assert "targetRef" in (stranger or "")


async def test_slices_that_are_not_for_us(cluster: Cluster) -> None:
    """Another namespace's, names instead of addresses, and one pod name with two uids."""
    await cluster.service(selector={})
    foreign = LABELS | {"nvidia.com/dynamo-namespace": "other"}
    for name, made in {
        "foreign": objects.endpoint_slice("foreign", objects.endpoint(pod_address(), "f"), labels=foreign),
        "names": objects.endpoint_slice("names", objects.endpoint("worker.example", "n"), kind="FQDN"),
        "first": objects.endpoint_slice("first", objects.endpoint(pod_address(), "a", "uid-1")),
        "second": objects.endpoint_slice("second", objects.endpoint(pod_address(), "a", "uid-2")),
    }.items():
        await cluster.admin.create("endpointslices", cluster.namespace, made)
        assert name == made["metadata"]["name"]
    async with cluster.discovering() as discovery:
        found = (await discovery.explain("dynamo", "decode")).candidates
    told = {c.id: c.reason or "" for c in found if c.id != "a"}
    assert "other" in told["foreign"]
    assert "FQDN" in told["names"]
    replaced = "its pod (uid uid-1) was replaced by another of that name (uid uid-2)"
    assert replaced in [c.reason for c in found if c.id == "a"]


async def test_metadata_that_cannot_be_had(cluster: Cluster) -> None:
    """Nobody listens; another pod answers at its address."""
    await cluster.service(ports={"http": "http"})
    runner = web.AppRunner(web.Application())
    address = pod_address()

    async def another(request: web.Request) -> web.Response:
        return web.json_response({}, headers={"Instance-Id": "b", "Instance-Incarnation": "u"})

    runner.app.router.add_get("/metadata", another)
    await runner.setup()
    await web.TCPSite(runner, address, 8080).start()
    await cluster.pod("nobody")
    await cluster.pod("other", address=address)
    await eventually_all_listed(cluster, {"nobody", "other"})
    found = await reasons(cluster)
    await runner.cleanup()
    assert (found["nobody"] or "").startswith("its metadata is unavailable: ")
    assert (found["other"] or "").startswith("its metadata is unavailable: ")
    assert "'b'" in (found["other"] or "")


async def eventually_all_listed(cluster: Cluster, names: set[str]) -> None:
    await asked_until(
        cluster.endpoints, lambda told: {found["targetRef"]["name"] for found in told.values()} == names
    )
