"""An instance with where it serves, for people who list: its metadata are asked for, and not waited for long."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from discovery.errors import MetadataUnavailableError
from discovery.instance import Instance
from discovery.metadata.served_at import serving_port

_WITHIN: Final = 2.0


@dataclass(frozen=True, slots=True)
class Located:
    """`metadata` None: not to be had, `problem` says why; then `instance.url` is what was registered."""

    instance: Instance
    metadata: dict[str, Any] | None
    problem: str | None = None


async def locate(instance: Instance) -> Located:
    try:
        async with asyncio.timeout(_WITHIN):
            metadata = await instance.metadata()
    except MetadataUnavailableError as error:
        return Located(instance, None, error.reason)
    except TimeoutError:
        return Located(instance, None, f"no answer within {_WITHIN:g} s")
    return Located(replace(instance, serving_port=serving_port(instance, metadata)), metadata)


async def locate_all(instances: Iterable[Instance]) -> list[Located]:
    """All at once, in their order."""
    return list(await asyncio.gather(*map(locate, instances)))
