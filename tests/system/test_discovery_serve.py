"""What the page of a component on a real API server says of pods that are no instances."""

from typing import Any

from adsum.tasks import background
from discovery.source import ComponentKey
from discovery.web.component_follower import ComponentFollower
from discovery.web.component_page import component_document
from tests.eventually import eventually
from tests.kubernetes.fake.objects import LABELS, SERVICE
from tests.system.cluster import Cluster
from tests.system.patient_client import patient_client


async def test_why_pods_are_no_instances(cluster: Cluster) -> None:
    async with cluster.discovering(client=patient_client()) as service:
        follower = ComponentFollower(service, ComponentKey("dynamo", "decode"), "kubernetes://")

        def reasons() -> dict[str, Any]:
            follower.look()
            rows = component_document(follower.state())["candidates"]
            return {row["id"]: (str(row["state"]), row["reason"] or "") for row in rows}

        def says(id: str, state: str, reason: str) -> bool:
            found = reasons().get(id)
            return found is not None and found[0] == state and reason in found[1]

        async with background(follower.run()):
            await eventually(lambda: says(SERVICE, "absent", "there is no Service called"))
            await cluster.service(selector=LABELS | {"app": "llm"})
            await cluster.pod("wrong", labels=LABELS)
            await cluster.pod("right", labels=LABELS | {"app": "llm"})
            await eventually(lambda: says("wrong", "absent", "the pod has no app"))
            await eventually(lambda: reasons().get("right", ("",))[0] in ("ready", "pending", "not_ready"))
