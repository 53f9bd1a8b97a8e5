"""`python readme_worker.py README.md PORT`: the worker that the README shows, with a server that answers every chat with "Hello".

It is run by the Python of a fresh environment, and imports nothing of the checkout.
"""

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

from aiohttp import web


class Server:
    async def wait_closed(self) -> None:
        await asyncio.Event().wait()


async def start_server(port: int, worker: Any) -> Server:
    async def answer(request: web.Request) -> web.Response:
        with worker.busy():
            await request.read()
            return web.json_response({"choices": [{"message": {"role": "assistant", "content": "Hello"}}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return Server()


if __name__ == "__main__":
    snippets = re.findall(r"```python\n(.*?)```", Path(sys.argv[1]).read_text(), re.DOTALL)
    [shown] = [text for text in snippets if "async def serve()" in text]
    names: dict[str, Any] = {"start_server": start_server}
    exec(compile(shown.replace("8000", sys.argv[2]), "README.md", "exec"), names)  # noqa: S102  # our own page
    asyncio.run(names["serve"]())
