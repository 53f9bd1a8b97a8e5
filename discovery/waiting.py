"""Waiting until a component is complete."""

import asyncio

from discovery.errors import DiscoveryTimeoutError
from discovery.instance import Instance
from discovery.service import ServiceDiscovery
from discovery.watch import InstanceEventStream


async def wait_for_instances(
    discovery: ServiceDiscovery,
    namespace: str,
    component: str,
    *,
    count: int,
    stable_for: float = 0.0,
    timeout: float = 60.0,
) -> list[Instance]:
    """At least `count` reachable instances with their metadata, the same set for `stable_for` seconds; sorted by id.

    Raises `DiscoveryTimeoutError` that says who is missing and why. Times are in seconds.
    """
    try:
        async with asyncio.timeout(timeout), discovery.watch(namespace, component, metadata=True) as stream:
            return await _stable(stream, count, stable_for)
    except TimeoutError as error:
        if isinstance(error, DiscoveryTimeoutError):
            raise
        explanation = await discovery.explain(namespace, component)
        there = sum(candidate.is_instance and not candidate.reason for candidate in explanation.candidates)
        raise DiscoveryTimeoutError(
            f"{namespace}/{component}: {there} of {count} instances, not stable for {stable_for:g} s within "
            f"{timeout:g} s:\n{explanation}"
        ) from error


async def _stable(stream: InstanceEventStream, count: int, stable_for: float) -> list[Instance]:
    while True:
        complete = len(_complete(stream)) >= count
        try:
            async with asyncio.timeout(stable_for if complete else None):
                before = _complete(stream)
                while _complete(stream) == before:
                    await anext(stream)
        except TimeoutError:
            members = _complete(stream)
            return [stream.instances[i] for i in sorted(members)]


def _complete(stream: InstanceEventStream) -> dict[str, str]:
    return {i.id: i.incarnation for i in stream.instances.values() if i.reachable}
