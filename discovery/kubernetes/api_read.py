"""Single GETs to an API server, decoded."""

import asyncio
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from discovery.kubernetes.refusal import parse_refusal
from discovery.kubernetes.transport import ApiTransport, TransportError
from discovery.kubernetes.wire import decode_status

_DEADLINE: Final = 10.0
_BODY_LIMIT: Final = 64 * 1024 * 1024

T = TypeVar("T")


class ApiReadError(Exception):
    """The text says why. `code`: the HTTP status, None without an answer."""

    def __init__(self, code: int | None, text: str) -> None:
        super().__init__(text)
        self.code = code


async def read_api(transport: ApiTransport, path: str, params: Mapping[str, str], kind: type[T]) -> T:
    """One GET of at most 64 MiB and 10 s, decoded as `kind`. Raises ApiReadError for any other answer, and for none."""
    body = bytearray()
    try:
        async with asyncio.timeout(_DEADLINE), transport.open(path, params) as response:
            async for chunk in response.chunks:
                body += chunk
                if len(body) > _BODY_LIMIT:
                    raise ApiReadError(None, f"{path}: the answer is longer than {_BODY_LIMIT} bytes")
            status, headers = response.status, response.headers
        if status == 200:
            return msgspec.json.decode(body, type=kind)
    except (TransportError, TimeoutError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiReadError(None, f"{path}: {str(error) or 'no answer in time'}") from error
    raise ApiReadError(status, parse_refusal(status, decode_status(body), headers).text)
