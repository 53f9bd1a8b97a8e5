"""What is asked with aiohttp, where a connection is made for a question or two: its body, and what kept it from us."""

import aiohttp

from discovery.instance import METADATA_LIMIT
from discovery.metadata.connections import connection_problem as system_problem


async def read_body(response: aiohttp.ClientResponse, limit: int = METADATA_LIMIT) -> bytes:
    """The whole body; of one that is longer than `limit` bytes, somewhat more than `limit` and no further."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:  # the caller judges; here we only stop reading
            response.close()
            break
    return bytes(body)


def connection_problem(error: Exception) -> str:
    """What kept a GET from an answer, in words; of a connection that was not made, what the system says."""
    failed = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
    return str(error) or type(error).__name__ if failed is None else system_problem(failed)
