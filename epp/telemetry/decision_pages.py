"""Serves the last decisions on the metrics port: GET /debug/decisions."""

import asyncio
from typing import Final

import msgspec
from aiohttp import web

from epp.decisions.query import DecisionReader, parse_query
from epp.telemetry.pages import SEND_TIMEOUT, send_page

DECISIONS_PATH: Final = "/debug/decisions"
_OFF: Final = "decisions are not recorded; start the picker without --decisions 0"


class DecisionPages:
    """`send_timeout`: seconds for a client to read an answer."""

    def __init__(self, reader: DecisionReader, send_timeout: float = SEND_TIMEOUT) -> None:
        self._reader = reader
        self._send_timeout = send_timeout
        self._one_at_a_time = asyncio.Lock()

    def add_to(self, app: web.Application) -> None:
        app.router.add_get(DECISIONS_PATH, self._decisions)

    async def _decisions(self, request: web.Request) -> web.StreamResponse:
        reader = self._reader
        if not reader.ring.most:
            return problem(404, _OFF)
        try:
            query = parse_query(request.query)
        except ValueError as error:
            return problem(400, str(error))
        async with self._one_at_a_time:  # however many ask, the loop and memory are spent on one answer
            parts, clock = [], asyncio.get_running_loop().time
            began = clock()
            for document in reader.read(query):
                parts.append(msgspec.json.encode(document))
                await asyncio.sleep(clock() - began)  # picks get at least half of the loop's time
                began = clock()
        head = msgspec.json.encode({"capacity": reader.ring.most, "last": reader.ring.last})
        body = head[:-1] + b',"decisions":[' + b",".join(parts) + b"]}\n"
        return await send_page(request, body, "application/json", self._send_timeout)


def problem(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode({"error": text}) + b"\n", content_type="application/json"
    )
