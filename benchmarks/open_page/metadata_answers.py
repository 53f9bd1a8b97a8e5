"""`python -m benchmarks.open_page.metadata_answers`: answers `GET /metadata` as any number of workers would, at every loopback address.

Prints `ready` and its port. One process for each worker would leave no core to measure on.
"""

import asyncio
from typing import Final

from aiohttp import web

from runtime.log_form import print_ready
from runtime.serving.descriptors import raise_descriptor_limit

_ETAG: Final = '"one"'
_DOCUMENT: Final = {"model": {"name": "meta-llama/Llama-3.1-8B-Instruct"}}


async def _answer(request: web.Request) -> web.Response:
    if request.headers.get("If-None-Match") != _ETAG:
        return web.json_response(_DOCUMENT, headers={"ETag": _ETAG})
    wait = request.headers.get("Prefer", "wait=0").partition("=")[2]
    await asyncio.sleep(float(wait))
    return web.Response(status=304, headers={"ETag": _ETAG, "Preference-Applied": f"wait={wait}"})


async def main() -> None:
    raise_descriptor_limit()
    app = web.Application()
    app.router.add_get("/metadata", _answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "0.0.0.0", 0, backlog=4096)
    await site.start()
    print_ready([f"http=127.0.0.1:{runner.addresses[0][1]}"])
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
