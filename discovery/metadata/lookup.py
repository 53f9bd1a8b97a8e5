"""Fetches the metadata of listed instances once, to show where they serve; `python -m discovery list` uses it."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from discovery.errors import MetadataUnavailableError
from discovery.instance import Instance
from discovery.metadata.serving_port import serving_port

_TIMEOUT: Final = 2.0
"""Seconds: a person waits for the list, and one silent worker must not delay it much."""


@dataclass(frozen=True, slots=True)
class MetadataLookup:
    """`instance` with its `serving_port`; `metadata` None: `problem` says why, and `instance.url` is the registered one."""

    instance: Instance
    metadata: dict[str, Any] | None
    problem: str | None = None


async def look_up(instance: Instance) -> MetadataLookup:
    try:
        async with asyncio.timeout(_TIMEOUT):
            metadata = await instance.metadata()
    except MetadataUnavailableError as error:
        return MetadataLookup(instance, None, error.reason)
    except TimeoutError:
        return MetadataLookup(instance, None, f"no answer within {_TIMEOUT:g} s")
    return MetadataLookup(replace(instance, serving_port=serving_port(instance, metadata)), metadata)


async def look_up_all(instances: Iterable[Instance]) -> list[MetadataLookup]:
    """Concurrently; the results keep the order of `instances`."""
    return list(await asyncio.gather(*map(look_up, instances)))
