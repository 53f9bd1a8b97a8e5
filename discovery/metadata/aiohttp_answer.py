"""For single requests over aiohttp (`check`, the sidecar): reads a body within a limit, and words connection errors."""

import aiohttp

from discovery.instance import METADATA_LIMIT
from discovery.metadata.connections import connection_problem as system_problem


async def read_body(response: aiohttp.ClientResponse, limit: int = METADATA_LIMIT) -> bytes:
    """The body; of a longer one, the first `limit` bytes and a little more, so that the caller sees that it is too long."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:
            response.close()
            break
    return bytes(body)


def connection_problem(error: Exception) -> str:
    """Why a request got no answer; where no connection was made, the operating system's reason."""
    failed = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
    return str(error) or type(error).__name__ if failed is None else system_problem(failed)
