"""The metrics port asks a real API server about tokens of real service accounts, with the rights that docs/kubernetes.md names."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import pytest
import yaml

from discovery.kubernetes import Cluster as ApiCluster
from discovery.kubernetes import ClusterTransport
from epp.kubernetes.access_review import AccessReviews, ReviewError
from epp.server import PickerServer
from tests.epp.local_picker import addresses, local
from tests.eventually import eventually
from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.api_server import FakeApiServer
from tests.system.cluster import Cluster
from tests.system.inference_extension import rights

RBAC = "/apis/rbac.authorization.k8s.io/v1"


async def bind(cluster: Cluster, account: str, role: str) -> None:
    """A ClusterRoleBinding of the account, which exists then."""
    await cluster.admin.account_token(cluster.namespace, account)
    binding = {
        "metadata": {"name": f"{cluster.namespace}-{account}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": cluster.namespace}],
    }
    await cluster.admin.ask("POST", f"{RBAC}/clusterrolebindings", binding)


async def may_scrape(cluster: Cluster, account: str) -> None:
    """As Prometheus is allowed to, by a ClusterRole of its own."""
    name = f"{cluster.namespace}-metrics"
    rules = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    await cluster.admin.ask("POST", f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    await bind(cluster, account, name)


async def kubeconfig(cluster: Cluster, account: str) -> str:
    """A file with the account's credentials."""
    server = cluster.admin.server
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": cluster.namespace}}
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": server.url, "certificate-authority": str(server.authority)}}
        ],
        "users": [
            {"name": "u", "user": {"token": await cluster.admin.account_token(cluster.namespace, account)}}
        ],
    }
    path = cluster.folder / f"{account}.kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return str(path)


@asynccontextmanager
async def picker(cluster: Cluster) -> AsyncIterator[str]:
    """The URL of the metrics port of a picker with an account named picker."""
    where = f"kubernetes://{cluster.namespace}?kubeconfig={await kubeconfig(cluster, 'picker')}"
    async with PickerServer(local(discovery=where, metrics_endpoint_auth=True)) as server:
        yield "http://" + addresses(server)["metrics"]


async def get(url: str, token: str | None) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_who_may_get_the_page_is_decided_by_the_cluster(cluster: Cluster) -> None:
    await allow_slices(cluster)
    await bind(cluster, "picker", "system:auth-delegator")
    await may_scrape(cluster, "prometheus")
    tokens = {
        name: await cluster.admin.account_token(cluster.namespace, name)
        for name in ("prometheus", "stranger")
    }
    async with picker(cluster) as url:

        async def allowed() -> bool:  # RBAC takes a moment, and a refusal is remembered for some seconds
            return (await get(f"{url}/metrics", tokens["prometheus"]))[0] == 200

        await eventually(allowed)
        assert (await get(f"{url}/metrics", None))[0] == 401
        assert (await get(f"{url}/metrics", "x" + tokens["prometheus"]))[0] == 401
        status, said = await get(f"{url}/metrics", tokens["stranger"])
        assert (status, f"system:serviceaccount:{cluster.namespace}:stranger" in said) == (403, True)
        assert (await get(f"{url}/debug/endpoints", tokens["prometheus"]))[0] == 403
        assert (await get(f"{url}/healthz", None))[0] == 200


async def allow_slices(cluster: Cluster) -> None:
    """The Role of a picker."""
    rules = [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}]
    await cluster.install(rights(cluster.namespace, rules, "picker"))


async def test_without_the_right_to_ask_the_port_is_not_open(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await allow_slices(cluster)
    token = await cluster.admin.account_token(cluster.namespace, "prometheus")
    async with picker(cluster) as url:
        status, said = await get(f"{url}/metrics", token)
    assert status == 500
    assert "HTTP 403: the service account needs these rules in a ClusterRole" in said
    assert 'resources: ["tokenreviews"]' in caplog.text


async def test_the_fake_reviews_as_the_real_one(cluster: Cluster) -> None:
    await bind(cluster, "picker", "system:auth-delegator")
    await may_scrape(cluster, "prometheus")
    real_user = f"system:serviceaccount:{cluster.namespace}:prometheus"
    token = await cluster.admin.account_token(cluster.namespace, "prometheus")
    await cluster.mount("picker")
    api = FakeApi()
    api.reviews.accounts = {token: real_user}
    api.reviews.grants = {(real_user, "get", "/metrics")}
    async with (
        FakeApiServer(api) as server,
        aclosing(ClusterTransport(ApiCluster(server.url))) as fake,
        aclosing(ClusterTransport(await cluster.connect())) as real,
    ):

        async def granted() -> bool:
            user = await reviewed(AccessReviews(real), token)
            return user is not None and await AccessReviews(real).may(user, "get", "/metrics")

        await eventually(granted)
        answers = [await said(AccessReviews(one), token) for one in (real, fake)]
    assert answers[0] == answers[1]


async def reviewed(reviews: AccessReviews, token: str) -> Any:
    try:
        return await reviews.user(token)
    except ReviewError:  # until RBAC knows the binding
        return None


async def said(reviews: AccessReviews, token: str) -> list[object]:
    user = await reviews.user(token)
    assert user is not None
    asked = [("get", "/metrics"), ("post", "/metrics"), ("get", "/other")]
    return [user.name, await reviews.user("wrong"), *[await reviews.may(user, *one) for one in asked]]
