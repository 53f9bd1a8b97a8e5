"""What traces cost the picker: processor time of a pick without them, with none, 1 %, 10 % and all requests recorded and sent."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from benchmarks.picking import pickers
from benchmarks.picking.added_cost import print_added
from benchmarks.picking.pickers import Kind
from benchmarks.picking.rounds import generator
from release import compiled_wheel

ENDPOINTS: Final = 100
_RATIOS: Final = (None, "0", "0.01", "0.1", "1")
"""None: without --tracing."""


@dataclass(slots=True)
class Collector:
    """Takes what an OTLP exporter sends over HTTP, and throws it away."""

    url: str = ""
    bytes: int = 0

    async def export(self, request: web.Request) -> web.Response:
        self.bytes += len(await request.read())
        return web.Response(content_type="application/x-protobuf")


async def main(folder: Path | None = None) -> None:
    """`folder`: of the project whose picker is measured; None: this one."""
    load_core, picker_core = pickers.cores()
    async with collecting() as collector, contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        ports = await enter(pickers.workers(ENDPOINTS))
        started = []
        for ratio in _RATIOS:
            with environment(collector.url, ratio):
                kind = Kind(name(ratio), folder=folder)
                options = (*pickers.SELDOM, *["--tracing"] * (ratio is not None))
                started.append(await enter(pickers.picker(kind, ports, picker_core, options)))
        await print_added(started[0], started[1:], await enter(generator(load_core)))
        print(f"the collector received {collector.bytes / 1e6:.1f} MB")


def name(ratio: str | None) -> str:
    return "off" if ratio is None else f"{float(ratio):.0%} recorded"


@contextlib.asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/traces", collector.export)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield collector
    finally:
        await runner.cleanup()


@contextlib.contextmanager
def environment(url: str, ratio: str | None) -> Iterator[None]:
    """For the processes that are started inside."""
    given = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_TRACES_SAMPLER_ARG": ratio or "",
    }
    os.environ.update(given)
    try:
        yield
    finally:
        for variable in given:
            del os.environ[variable]


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(prog="python -m benchmarks.tracing", description=__doc__)
    parser.add_argument("--compiled", action="store_true", help="measure the picker compiled by mypyc")
    asyncio.run(main(compiled_wheel.build() if parser.parse_args().compiled else None))
