"""`wait_for_instances`: waits until a component has enough reachable instances."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import anyio

from adsum.tasks import cancel_and_wait
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
    """At least `count` reachable instances with their metadata, once the set was the same for `stable_for` seconds; by id.

    Raises `DiscoveryTimeoutError` with the missing workers and why, ValueError for a negative number, RuntimeError if
    the discovery is closed meanwhile. Times are in seconds.
    """
    for name, value in (("count", count), ("stable_for", stable_for), ("timeout", timeout)):
        if not value >= 0:
            raise ValueError(f"{name} is {value}; expected zero or more")
    deadline = asyncio.get_running_loop().time() + timeout
    stream = discovery.watch(namespace, component, metadata=True)
    try:
        await _enter(stream, discovery.list_instances(namespace, component, timeout=timeout))
        with anyio.CancelScope(deadline=deadline):
            return await _wait_stable(stream, count, stable_for)
        explanation = await discovery.explain(namespace, component)  # uses the open watch: sends no requests
        raise DiscoveryTimeoutError(
            f"{namespace}/{component}: {len(_reachable(stream))} of {count} instances, not stable for "
            f"{stable_for:g} s within {timeout:g} s:\n{explanation}"
        )
    finally:
        await stream.aclose()


async def _enter(stream: InstanceEventStream, listing: Coroutine[Any, Any, object]) -> None:
    """Enter within the timeout of `listing`, which waits for the same snapshot: its error says what is wrong."""
    listed = asyncio.ensure_future(listing)

    async def enter() -> None:
        while True:
            try:
                await stream.__aenter__()
                return
            except DiscoveryTimeoutError:  # the discovery's own, which may be shorter
                if listed.done():
                    raise

    both = [asyncio.ensure_future(enter()), listed]
    try:
        await asyncio.gather(*both)
    finally:
        await cancel_and_wait(*both)


async def _wait_stable(stream: InstanceEventStream, count: int, stable_for: float) -> list[Instance]:
    while True:
        before = _reachable(stream)
        is_enough = len(before) >= count
        if not is_enough or stable_for > 0:
            with anyio.move_on_after(stable_for if is_enough else None) as unchanged:
                while _reachable(stream) == before:
                    await _next_change(stream)
            # an event can arrive together with the end of the time
            if not unchanged.cancelled_caught or _reachable(stream) != before:
                continue
        return [stream.instances[i] for i in sorted(before)]


async def _next_change(stream: InstanceEventStream) -> None:
    try:
        await anext(stream)
    except StopAsyncIteration as error:
        raise RuntimeError("the discovery was closed while `wait_for_instances` waited") from error


def _reachable(stream: InstanceEventStream) -> dict[str, str]:
    return {i.id: i.incarnation for i in stream.instances.values() if i.reachable}
