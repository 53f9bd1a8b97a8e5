"""A listed worker that serves well answers `GET /metadata` with something else than a document, or a 404."""

import asyncio

from benchmarks.attacks.stage.asking import ask, channel
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
SETTLED = 2.0


async def attack(figures: Figures) -> None:
    """All at once, each with a picker of its own."""
    said = await asyncio.gather(*map(_routed, ANSWERS.values()))
    before = said[0]
    for name, outcome in list(zip(ANSWERS, said, strict=True))[1:]:
        figures.add(f"a request to it, where it says {name} instead of 404", before, outcome)


async def _routed(metadata: bytes) -> str:
    pages = {"/metrics": answer(HONEST), "/metadata": metadata}
    async with worker(pages) as port, picker([port]) as victim:
        await asyncio.sleep(SETTLED)
        async with channel(victim.ports["grpc"]) as opened:
            answered = await ask(opened, BODY)
    return "routed" if answered.startswith(f"127.0.0.1:{port}") else f"refused with {answered}"
