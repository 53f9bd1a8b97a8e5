"""Starts an Envoy in front of each picker, and one Envoy without a picker."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final

import yaml

from benchmarks.envoy_process import envoy
from benchmarks.picking.pickers import Picker
from epp.envoy.config import bootstrap
from epp.envoy.json_values import Address
from epp.envoy.settings import EnvoySettings

ALONE: Final = "Envoy alone"


@contextlib.asynccontextmanager
async def behind_envoy(picker: Picker | None, workers: Sequence[int], core: int) -> AsyncIterator[Picker]:
    """Yields the picker with the port of its Envoy; None: the Envoy itself, which balances round-robin over the workers."""
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
    async with envoy(yaml.safe_dump(config), core=core) as (pid, port):
        yield replace(picker, port=port) if picker else Picker(ALONE, pid, port)
