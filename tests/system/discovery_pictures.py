"""`python -m tests.system.discovery_pictures [FOLDER]`: the pictures of discovery's page in docs, of a real run.

It needs Chromium, as `python -m tests.system` installs it.
"""

import asyncio
import os
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from playwright.async_api import Browser

import registry
from tests.discovery.web.test_serve import serve
from tests.owner_process import owner
from tests.system.browser import chromium, take_pictures
from tests.system.test_discovery_page import worker

MODELS = ("meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-32B")


async def take(browser: Browser, folder: Path, place: Path) -> None:
    """Ready workers, and one each that starts, drains, hangs and is dead."""
    root = place / "workers"
    root.mkdir(mode=0o700)
    url = f"file://{root}"
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serve("--discovery", url))
        handles = {}
        for n, name in enumerate((*(f"decode-{n}" for n in range(5)), "decode-draining", "decode-starting")):
            opened = await stack.enter_async_context(
                registry.open(url, address="127.0.0.1", instance_id=name)
            )
            handles[name] = await opened.register_instance("prod", "decode")
            if name != "decode-starting":
                handles[name].set_metadata({"model": {"name": MODELS[n % 2]}})
                handles[name].set_ready("ready")
        frozen = await stack.enter_async_context(worker(url, "decode-frozen", MODELS[0]))
        await asyncio.sleep(3)
        handles["decode-draining"].set_ready("draining")
        os.kill(frozen.pid, signal.SIGSTOP)
        await asyncio.sleep(8)
        with owner(root, "decode-killed"):
            await asyncio.sleep(1)
        await take_pictures(browser, served.url, "discovery-page", folder)


async def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        async with chromium() as browser:
            await take(browser, folder, Path(place))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")))
