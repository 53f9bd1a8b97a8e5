"""A client of the API server with the administrator's rights: creates what a test needs and reads it back."""

import asyncio
import itertools
import os
import ssl
from collections.abc import Mapping
from typing import Any, Final, Self

import aiohttp

from tests.eventually import eventually
from tests.open_connections import connected
from tests.system.api_process import ApiProcess

_MERGE: Final = "application/merge-patch+json"
_numbers = itertools.count()

GROUPS: Final = {
    "pods": "/api/v1",
    "services": "/api/v1",
    "serviceaccounts": "/api/v1",
    "endpointslices": "/apis/discovery.k8s.io/v1",
    "roles": "/apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
}
KINDS: Final = {
    "Pod": "pods",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "EndpointSlice": "endpointslices",
    "Role": "roles",
    "RoleBinding": "rolebindings",
}


class ApiError(Exception):
    """A response that is not 2xx; `status` is the HTTP code."""

    def __init__(self, method: str, path: str, status: int, said: Any) -> None:
        super().__init__(f"{method} {path}: HTTP {status}: {said}")
        self.status = status


class Administrator:
    """An async context manager. `host`: another address of the same server."""

    def __init__(self, server: ApiProcess, host: str | None = None) -> None:
        self.server = server
        self._url = f"https://{host or server.address}"
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> Any:
        """Returns the decoded answer; raises ApiError if it is not 2xx."""
        assert self._session is not None
        url = f"{self._url}:{self.server.port}{path}"
        async with self._session.request(
            method, url, json=body, params=params, headers={"Content-Type": kind}
        ) as answer:
            said = await answer.json(content_type=None)
            if answer.status >= 300:
                raise ApiError(method, path, answer.status, said)
            return said

    async def namespace(self, prefix: str) -> str:
        """Creates a namespace with a unique name."""
        name = f"{prefix}-{os.getpid()}-{next(_numbers)}"
        await self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    async def node(self, name: str) -> None:
        """Pods whose node does not exist are in no slice."""
        labels = {"topology.kubernetes.io/zone": f"zone-of-{name}"}
        try:
            await self.ask("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        except ApiError as error:
            if error.status != 409:
                raise

    async def create(self, resource: str, namespace: str, obj: Mapping[str, Any]) -> Any:
        placed = {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}
        return await self.ask("POST", path(resource, namespace), placed)

    async def apply(self, obj: Mapping[str, Any]) -> Any:
        """Create an object that says its kind and namespace, as a chart renders it."""
        return await self.create(KINDS[obj["kind"]], obj["metadata"]["namespace"], obj)

    async def list(self, resource: str, namespace: str, **params: str) -> Any:
        return await self.ask("GET", path(resource, namespace), params=params)

    async def get(self, resource: str, namespace: str, name: str) -> Any:
        return await self.ask("GET", path(resource, namespace, name))

    async def patch(self, resource: str, namespace: str, name: str, change: Any, part: str = "") -> Any:
        """A merge patch; `part`: a subresource, as "status"."""
        where = path(resource, namespace, name) + (f"/{part}" if part else "")
        return await self.ask("PATCH", where, change, kind=_MERGE)

    async def delete(self, resource: str, namespace: str, name: str, grace: int | None = 0) -> None:
        """`grace`: seconds until it is gone without anybody's doing; 0 is at once, None as the object says."""
        body = {} if grace is None else {"gracePeriodSeconds": grace}
        await self.ask("DELETE", path(resource, namespace, name), body)

    async def account_token(self, namespace: str, account: str, seconds: int = 3600) -> str:
        """A bearer token of a service account, made the first time."""
        try:
            await self.create("serviceaccounts", namespace, {"metadata": {"name": account}})
        except ApiError as error:
            if error.status != 409:
                raise
        wanted = {"spec": {"expirationSeconds": seconds}}
        made = await self.ask("POST", path("serviceaccounts", namespace, account) + "/token", wanted)
        return str(made["status"]["token"])

    async def __aenter__(self) -> Self:
        context = await asyncio.to_thread(ssl.create_default_context, cafile=str(self.server.authority))
        context.check_hostname = False  # the server has more addresses than its certificate names
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=32),
            headers={"Authorization": f"Bearer {self.server.token}"},
            timeout=aiohttp.ClientTimeout(total=90),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Returns once nobody in this process is connected to the server: a request that was cancelled leaves a
        connection whose TLS says goodbye in the background, and a loop that ends before would tell of it as a leak.
        """
        assert self._session is not None
        await self._session.close()
        await eventually(lambda: not connected(self.server.port))


def path(resource: str, namespace: str, name: str = "") -> str:
    found = f"{GROUPS[resource]}/namespaces/{namespace}/{resource}"
    return f"{found}/{name}" if name else found
