"""A listed worker that serves well answers `GET /metadata` with something else than a document, or a 404."""

import asyncio
import contextlib
from collections import Counter

from benchmarks.attacks.stage.ext_proc_client import channel, send_request
from benchmarks.attacks.stage.figures import Figures
from benchmarks.attacks.stage.victim import picker
from benchmarks.attacks.stage.worker import HONEST, answer, worker

BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
ANSWERS = {
    "404": answer(b"", status="404 Not Found"),
    "200 with HTML": answer(b"<html></html>", "text/html"),
    "204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "302": b"HTTP/1.1 302 Found\r\nlocation: /login\r\ncontent-length: 0\r\n\r\n",
    "400": answer(b"", status="400 Bad Request"),
    "401": answer(b"", status="401 Unauthorized"),
    "429": answer(b"", status="429 Too Many Requests"),
    "503": answer(b"", status="503 Service Unavailable"),
    "2 MiB of JSON": answer(b'{"a":"' + b"a" * 2_097_152 + b'"}', "application/json"),
}
PICKS = 90
SETTLED = 6.0
"""Seconds in which each was asked for its metadata, and for its page."""


async def attack(figures: Figures) -> None:
    async with contextlib.AsyncExitStack() as stack:
        ports = {}
        for name, metadata in ANSWERS.items():
            pages = {"/metrics": answer(HONEST), "/metadata": metadata}
            ports[await stack.enter_async_context(worker(pages))] = name
        victim = await stack.enter_async_context(picker(list(ports)))
        await asyncio.sleep(SETTLED)
        opened = await stack.enter_async_context(channel(victim.ports["grpc"]))
        answered = [await send_request(opened, BODY) for _ in range(PICKS)]
    picks = Counter(ports.get(int(one.rpartition(":")[2]), one) for one in answered)
    for name in list(ANSWERS)[1:]:
        figures.add(f"of {PICKS} picks: to one that says 404, {name}", picks["404"], picks[name])
