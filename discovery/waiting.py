"""Waiting until a component is complete."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import anyio

from discovery.errors import DiscoveryTimeoutError
from discovery.instance import Instance
from discovery.service import ServiceDiscovery
from discovery.watch import InstanceEventStream
from runtime.tasks import cancel_and_wait


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

    Raises `DiscoveryTimeoutError` that says who is missing and why, ValueError for a number below zero, RuntimeError
    when the discovery is closed meanwhile. Times are in seconds.
    """
    for name, value in (("count", count), ("stable_for", stable_for), ("timeout", timeout)):
        if not value >= 0:
            raise ValueError(f"{name} is {value}; expected zero or more")
    deadline = asyncio.get_running_loop().time() + timeout
    stream = discovery.watch(namespace, component, metadata=True)
    try:
        await _enter(stream, discovery.list_instances(namespace, component, timeout=timeout))
        with anyio.CancelScope(deadline=deadline):
            return await _stable(stream, count, stable_for)
        explanation = await discovery.explain(namespace, component)  # shares the open watch: nobody is asked
        raise DiscoveryTimeoutError(
            f"{namespace}/{component}: {len(_complete(stream))} of {count} instances, not stable for "
            f"{stable_for:g} s within {timeout:g} s:\n{explanation}"
        )
    finally:
        await stream.aclose()


async def _enter(stream: InstanceEventStream, listing: Coroutine[Any, Any, object]) -> None:
    """Enter; `listing`, which reads the same set, keeps the time: its error says what was heard of the source."""
    both = [asyncio.ensure_future(stream.__aenter__()), asyncio.ensure_future(listing)]
    try:
        await asyncio.gather(*both)
    finally:
        await cancel_and_wait(*both)


async def _stable(stream: InstanceEventStream, count: int, stable_for: float) -> list[Instance]:
    while True:
        before = _complete(stream)
        is_enough = len(before) >= count
        if not is_enough or stable_for > 0:
            with anyio.move_on_after(stable_for if is_enough else None) as patience:
                while _complete(stream) == before:
                    await _change(stream)
            if not patience.cancelled_caught or _complete(stream) != before:
                continue
        return [stream.instances[i] for i in sorted(before)]


async def _change(stream: InstanceEventStream) -> None:
    try:
        await anext(stream)
    except StopAsyncIteration as error:
        raise RuntimeError("the discovery was closed while its instances were waited for") from error


def _complete(stream: InstanceEventStream) -> dict[str, str]:
    return {i.id: i.incarnation for i in stream.instances.values() if i.reachable}
