"""A peer of the picker's port sends subset hints of a megabyte, no two alike, and one of 160,000 addresses."""

import contextlib

import grpc.aio

from benchmarks.attacks.stage.ext_proc_client import channel, send_request
from benchmarks.attacks.stage.figures import Figures
from benchmarks.attacks.stage.probe import probe_for, probing
from benchmarks.attacks.stage.victim import picker
from benchmarks.attacks.stage.worker import HONEST, answer, worker
from epp.ext_proc.protocol import SUBSET_NAMESPACE
from epp.request.control_headers import SUBSET
from epp.wire.messages.ext_proc_pb2 import Metadata

BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
UNIQUE = 150
MANY = ",".join(f"[fd00::{number >> 16:x}:{number & 65535:x}]:8000" for number in range(160_000))


async def attack(figures: Figures) -> None:
    async with (
        worker({"/metrics": answer(HONEST)}) as port,
        picker([port]) as victim,
        channel(victim.ports["grpc"]) as opened,
    ):
        await send_request(opened, BODY)
        quiet, held = await probe_for(victim.url("/healthz"), 2.0), victim.megabytes
        for number in range(UNIQUE):
            await _send_hint(opened, f"{number}" + "a" * 1_000_000)
        figures.add(f"memory, {UNIQUE} unique hints later", f"{held:.0f} MB", f"{victim.megabytes:.0f} MB")
        async with probing(victim.url("/healthz")) as under:
            await _send_hint(opened, MANY)
        figures.add("who asks for /healthz meanwhile", quiet, under)


async def _send_hint(opened: grpc.aio.Channel, hint: str) -> None:
    context = Metadata()
    context.filter_metadata[SUBSET_NAMESPACE].update({SUBSET: hint})
    with contextlib.suppress(grpc.aio.AioRpcError, AssertionError):
        await send_request(opened, BODY, context=context)
