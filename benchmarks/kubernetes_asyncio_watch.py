"""Lists and watches EndpointSlices with kubernetes-asyncio, for comparison."""

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Self

from kubernetes_asyncio.client import ApiClient, Configuration, DiscoveryV1Api
from kubernetes_asyncio.watch import Watch

from benchmarks.recorded_api import NAMESPACE


class TheirSlices:
    """The slices of one Service of the server at `url`; an async context manager, created while a loop runs."""

    def __init__(self, url: str, component: str) -> None:
        self._client = ApiClient(Configuration(host=url))
        self._api = DiscoveryV1Api(self._client)
        self._selector = f"kubernetes.io/service-name=dynamo-{component}-service"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def list(self) -> Any:
        return await self._api.list_namespaced_endpoint_slice(NAMESPACE, label_selector=self._selector)

    async def events(self) -> AsyncGenerator[Any]:
        """Yields each watch event with its model."""
        listing = self._api.list_namespaced_endpoint_slice
        async with Watch().stream(listing, NAMESPACE, label_selector=self._selector) as stream:
            async for event in stream:
                yield event
