"""`python -m engine NAME ARGUMENTS`: a model server by its name and its arguments, for pages whose reader has one.

Behind it is the simulator; its metrics page has the path and the names of the real server's, and is there only if the arguments
ask for it, as with the real one.
"""

import argparse
import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

from epp.endpoints.worker_metrics import KV_USAGE, RUNNING, WAITING


@dataclass(frozen=True)
class Engine:
    """`page`: the path of its metrics page. `model`: how the model is named on its command line."""

    port: int
    page: str = "/metrics"
    model: Sequence[str] = ("--model",)


ENGINES = {
    "vllm": Engine(8000),
    "sglang": Engine(30000, model=("--model-path", "--model")),
    "trtllm-serve": Engine(8000, page="/prometheus/metrics"),
    "llama.cpp": Engine(8080, model=("-m", "--model", "-hf")),
}


def options(name: str, arguments: Sequence[str]) -> argparse.Namespace:
    engine = ENGINES[name]
    parser = argparse.ArgumentParser(prog=name, allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=engine.port)
    if name in ("vllm", "trtllm-serve"):
        parser.add_argument("model")
    else:
        parser.add_argument(*engine.model, dest="model", required=True)
    parser.add_argument("--served-model-name", "--alias", dest="served")
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--parallel", "-np", type=int)
    parser.add_argument("--enable-metrics", action="store_true")
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--kv-transfer-config", type=json.loads)
    return parser.parse_args(arguments)


def has_page(name: str, given: argparse.Namespace) -> bool:
    """Whether the real server would have a metrics page."""
    match name:
        case "sglang":
            return bool(given.enable_metrics)
        case "llama.cpp":
            return bool(given.metrics)
        case "trtllm-serve":
            config = yaml.safe_load(given.config.read_text()) if given.config else {}
            return bool(config.get("return_perf_metrics") and config.get("enable_iter_perf_stats"))
    return True


def translated(name: str, page: str) -> str:
    """vLLM's page under the names of another server."""
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    if name == "vllm":
        return page
    found = []
    for metric in (WAITING, RUNNING, KV_USAGE):
        vllm = metric.series["vllm"].partition("|")[0]
        value = next(line.rpartition(" ")[2] for line in lines if line.startswith(vllm))
        found.append(f"# TYPE {metric.series[name]} gauge\n{metric.series[name]} {value}\n")
    return "".join(found)


async def serve(name: str, given: argparse.Namespace) -> None:
    model = given.served or given.model
    transfers = ("--role", "both") if given.kv_transfer_config else ()
    simulator = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.simulator", "--no-register", "--model", model, *transfers),
        stdout=PIPE,
    )
    assert simulator.stdout is not None
    behind = (await simulator.stdout.readline()).decode().split()[1].replace("http=", "http://")
    async with aiohttp.ClientSession() as session:

        async def answer(request: web.Request) -> web.Response:
            if request.path in ("/metrics", "/prometheus/metrics"):
                return await metrics(request)
            body = await request.read()
            url = f"{behind}{request.path}"
            async with session.request(request.method, url, data=body or None) as got:
                return web.Response(body=await got.read(), status=got.status, content_type=got.content_type)

        async def metrics(request: web.Request) -> web.Response:
            if name == "trtllm-serve" and request.path == "/metrics":
                return web.json_response([])  # statistics of iterations, not a page
            if request.path != ENGINES[name].page or not has_page(name, given):
                return web.json_response({"error": "no metrics"}, status=501 if name == "llama.cpp" else 404)
            async with session.get(f"{behind}/metrics") as got:
                return web.Response(text=translated(name, await got.text()))

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, given.host, given.port).start()
        print("ready", json.dumps({"port": given.port, "model": model}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], options(sys.argv[1], sys.argv[2:])))
