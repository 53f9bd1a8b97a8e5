"""Role-based access control with the Roles that the charts render: they are enough, and each rule is needed."""

from typing import Any

import pytest

from discovery import (
    Explanation,
    ForbiddenError,
    InstanceStatus,
    RegistrationError,
    SourceDiscovery,
    WatchState,
)
from discovery.kubernetes import (
    ApiTransport,
    ClusterTransport,
    KubernetesSource,
    LabelSelection,
    Selection,
    ServiceSelection,
    Timings,
)
from discovery.kubernetes.api.refusal import GET_SERVICES, LIST_PODS, LIST_SLICES, PolicyRule
from registry import Contract, InstanceHandle
from registry.kubernetes.membership import KubernetesMembership, ServiceCheck
from registry.kubernetes.pod_service import LIST_SERVICES
from registry.registration import Announcement, MembershipRegistry
from tests.eventually import eventually
from tests.kubernetes.fake.objects import LABELS
from tests.system.charts import Object, render, rights
from tests.system.cluster import Cluster
from tests.system.pod_registry import environment_of

IMAGE = {"image": "registry.example/adsum:1"}
QUICK = Timings(backoff=(0.05, 0.2))


async def install(cluster: Cluster, chart: str, values: dict[str, Any], *without: str) -> None:
    """The chart's account and Role as release `r`, without some `verb resource`."""
    made = rights(render(chart, values, "r", cluster.namespace))
    for obj in made:
        if obj["kind"] == "Role":
            obj["rules"] = [rule for rule in (_less(rule, without) for rule in obj["rules"]) if rule["verbs"]]
    await cluster.install(made)


def _less(rule: Object, without: tuple[str, ...]) -> Object:
    (resource,) = rule["resources"]
    return {**rule, "verbs": [verb for verb in rule["verbs"] if f"{verb} {resource}" not in without]}


async def explained(cluster: Cluster, selection: Selection | None = None) -> Explanation:
    transport = ClusterTransport(await cluster.connect())
    source = KubernetesSource(transport, cluster.namespace, selection or ServiceSelection())
    async with SourceDiscovery(source) as discovery:
        return await discovery.explain("dynamo", "decode")


def rule_in(text: str, rule: PolicyRule, cluster: Cluster) -> bool:
    return rule.manifest() in text and f"in a Role of the namespace {cluster.namespace}" in text


async def test_the_frontends_role_is_enough_to_watch_and_no_more(cluster: Cluster) -> None:
    await install(cluster, "frontend", {})
    await cluster.service()
    await cluster.pod("a", ready=False)
    async with cluster.discovering() as discovery:
        assert await discovery.list_instances("dynamo", "decode") == []
        [services, *_] = [
            c for c in (await discovery.explain("dynamo", "decode")).candidates if c.id == "services"
        ]
        assert rule_in(services.reason or "", GET_SERVICES, cluster)


async def test_without_the_right_to_list_slices_the_first_list_raises(cluster: Cluster) -> None:
    await install(cluster, "frontend", {}, "list endpointslices", "watch endpointslices")
    async with cluster.discovering() as discovery:
        with pytest.raises(ForbiddenError) as refused:
            await discovery.list_instances("dynamo", "decode")
    assert rule_in(str(refused.value), LIST_SLICES, cluster)


async def test_without_the_right_to_watch_the_set_stands_and_the_health_says_why(cluster: Cluster) -> None:
    await install(cluster, "frontend", {}, "watch endpointslices")
    await cluster.service()
    pod = await cluster.pod("a")
    async with cluster.recorder(QUICK) as recorder:
        await eventually(lambda: recorder.stream.health.state is WatchState.DEGRADED)
        assert rule_in(recorder.stream.health.reason or "", LIST_SLICES, cluster)
        assert recorder.uids <= {pod.uid}
        # granted, it goes on without anybody's doing
        role = (await cluster.admin.list("roles", cluster.namespace))["items"]
        (mine,) = [found for found in role if found["metadata"]["name"] != "frontend"]
        rules = [
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
        ]
        await cluster.admin.patch("roles", cluster.namespace, mine["metadata"]["name"], {"rules": rules})
        await eventually(lambda: recorder.stream.health.state is WatchState.SYNCED)
        await cluster.pod("b")
        await eventually(lambda: recorder.names == {"a", "b"})


@pytest.mark.parametrize(
    ("missing", "candidate", "rule", "selection"),
    [
        ("get services", "services", GET_SERVICES, ServiceSelection()),
        ("list services", "services", GET_SERVICES, LabelSelection()),
        ("list pods", "pods", LIST_PODS, ServiceSelection()),
    ],
)
async def test_explain_says_which_rule_it_lacks(
    cluster: Cluster, missing: str, candidate: str, rule: PolicyRule, selection: Selection
) -> None:
    await install(cluster, "frontend", {"explain": True}, missing)
    await cluster.service(labels=LABELS)
    await cluster.pod("a", ready=False)
    found = {c.id: c.reason or "" for c in (await explained(cluster, selection)).candidates}
    assert rule_in(found[candidate], rule, cluster)


async def test_with_its_whole_role_explain_looks_at_everything(cluster: Cluster) -> None:
    await install(cluster, "frontend", {"explain": True})
    await cluster.service(labels=LABELS)
    await cluster.pod("a", ready=False)
    for selection in (ServiceSelection(), LabelSelection()):
        [only] = (await explained(cluster, selection)).candidates
        assert (only.id, only.reason) == (
            "a",
            "its pod is not ready: its readiness probe (GET /health) fails",
        )


async def register(cluster: Cluster) -> InstanceHandle:
    """A worker in a pod of its own, with the account that is mounted."""
    pod = await cluster.pod("w-0", ready=False)
    connected = await cluster.connect()

    async def connect() -> ApiTransport:
        return ClusterTransport(connected)

    membership = KubernetesMembership(
        ServiceCheck(connect, ServiceSelection()), environment=environment_of(pod, cluster)
    )
    told = Announcement(address=pod.address, port=8080, contract=Contract())
    return await MembershipRegistry(lambda: membership, told).register_instance("dynamo", "decode")


async def test_the_workers_role_is_enough_to_register(cluster: Cluster) -> None:
    await install(cluster, "worker", IMAGE)
    await cluster.service()
    handle = await register(cluster)
    assert (handle.instance_id(), handle.instance.status) == ("w-0", InstanceStatus.NOT_READY)
    await handle.close()


async def test_a_worker_without_the_right_to_list_services_says_which_rule_it_lacks(cluster: Cluster) -> None:
    await install(cluster, "worker", IMAGE, "list services")
    await cluster.service()
    with pytest.raises(RegistrationError) as refused:
        await register(cluster)
    assert rule_in(str(refused.value), LIST_SERVICES, cluster)
    assert "assert_service=false" in str(refused.value)


async def test_a_worker_that_watches_others_may(cluster: Cluster) -> None:
    await install(cluster, "worker", {**IMAGE, "watchesOthers": True})
    await cluster.service()
    await cluster.pod("a")
    async with cluster.discovering() as discovery, discovery.watch("dynamo", "decode") as stream:
        assert (await anext(stream)).instance_id == "a"


async def test_the_pickers_role_is_enough_to_watch(cluster: Cluster) -> None:
    await install(cluster, "epp", IMAGE)
    await cluster.service()
    await cluster.pod("a")
    async with cluster.discovering() as discovery, discovery.watch("dynamo", "decode") as stream:
        assert (await anext(stream)).instance_id == "a"


async def test_a_right_is_for_one_namespace(cluster: Cluster) -> None:
    """Another namespace of the same cluster is refused, and the error names that one."""
    other = await cluster.admin.namespace("other")
    transport = ClusterTransport(await cluster.connect())
    async with SourceDiscovery(KubernetesSource(transport, other, ServiceSelection())) as discovery:
        with pytest.raises(ForbiddenError, match=f"in a Role of the namespace {other}"):
            await discovery.list_instances("dynamo", "decode")
