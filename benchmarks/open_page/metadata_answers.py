"""`python -m benchmarks.open_page.metadata_answers COUNT`: answers `GET /metadata` as COUNT workers would, at `addresses(COUNT)`.

Prints `ready` and its port. One process for each worker would leave no core to measure on.
"""

import asyncio
import sys
from typing import Final

from aiohttp import web

from adsum.logs import print_ready
from adsum.serving.sockets import raise_descriptor_limit
from benchmarks.ports import free_ports

_ETAG: Final = '"one"'
_DOCUMENT: Final = {"model": {"name": "meta-llama/Llama-3.1-8B-Instruct"}}


def addresses(count: int) -> list[str]:
    """Loopback addresses, at most 250 * 250 * 250."""
    return [f"127.{1 + at // 62_500}.{at // 250 % 250}.{at % 250 + 1}" for at in range(count)]


async def _answer(request: web.Request) -> web.Response:
    if request.headers.get("If-None-Match") != _ETAG:
        return web.json_response(_DOCUMENT, headers={"ETag": _ETAG})
    wait = request.headers.get("Prefer", "wait=0").partition("=")[2]
    await asyncio.sleep(float(wait))
    return web.Response(status=304, headers={"ETag": _ETAG, "Preference-Applied": f"wait={wait}"})


async def main(count: int) -> None:
    raise_descriptor_limit()
    app = web.Application()
    app.router.add_get("/metadata", _answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    assert runner.server is not None
    (port,) = free_ports(1)
    await asyncio.get_running_loop().create_server(runner.server, addresses(count), port)
    print_ready([f"http=127.0.0.1:{port}"])
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
