"""`python -m tests.system.echo_process NAME ADDRESS PORT...`: a model server that answers anything with its name and port.

So does echo-basic in the conformance tests, also to /metrics and /metadata. It ends with its standard input.
"""

import sys

import anyio
import anyio.to_thread
from aiohttp import web
from aiohttp.typedefs import Handler


async def serve(name: str, address: str, ports: list[int]) -> None:
    runners = []
    for port in ports:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", _answering(name, port))
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, address, port).start()
        runners.append(runner)
    print("ready", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.read)
    for runner in runners:
        await runner.cleanup()


def _answering(name: str, port: int) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        said = {"pod": name, "httpPort": str(port), "headers": dict(request.headers)}
        return web.json_response({**said, "body": await request.text()})

    return answer


if __name__ == "__main__":
    anyio.run(serve, sys.argv[1], sys.argv[2], [int(port) for port in sys.argv[3:]])
