"""Sends each request when it is due and notes what became of it, whoever answers."""

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.overload.load import Arrival, Source
from benchmarks.streamed_answer import HEAD_END, StreamedAnswer

_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_HEADER: Final = rb"\r\n%s: *([^\r\n]*)"
_DONE: Final = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one request; seconds from the start. `status` 0: no answer, 200 only for a whole one.

    `first`: its first token. `cause`: why it was dropped, or why there was no answer. `at`: when it left, `late` after it
    was due.
    """

    source: Source
    at: float
    late: float
    first: float
    ended: float
    status: int
    cause: str = ""
    retry_after: str = ""

    @property
    def ttft(self) -> float:
        return self.first - self.at


class Users:
    """Sends requests to one port. `patience`: seconds after which one without a whole answer hangs."""

    def __init__(self, port: int, patience: float) -> None:
        self.waiting = 0
        self._port = port
        self._patience = patience

    async def send(self, arrivals: Sequence[Arrival]) -> list[Fate]:
        """Returns when there is nothing left to wait for."""
        planned = [(one, _request(one)) for one in arrivals]  # written before anything is measured
        start = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            asked = []
            for one, request in planned:
                if (pause := start + one.at - time.monotonic()) > 0:
                    await asyncio.sleep(pause)
                asked.append(tasks.create_task(self._ask(one, request, start)))
        return [task.result() for task in asked]

    async def _ask(self, one: Arrival, request: bytes, start: float) -> Fate:
        at = time.monotonic() - start
        late = at - one.at
        exchange, cause = StreamedAnswer(request), ""
        self.waiting += 1
        try:
            async with asyncio.timeout(self._patience):
                loop = asyncio.get_running_loop()
                transport, _ = await loop.create_connection(lambda: exchange, "127.0.0.1", self._port)
                try:
                    ended = await exchange.ended
                finally:
                    transport.abort()
        except TimeoutError:
            cause, ended = "it hung", time.monotonic()
        except OSError as error:
            cause, ended = f"cannot connect: {error.strerror}", time.monotonic()
        finally:
            self.waiting -= 1
        status, dropped, retry_after = _read(exchange.received)
        first = (exchange.first or ended) - start
        return Fate(
            one.source,
            at,
            late,
            first,
            ended - start,
            0 if cause else status,
            cause or dropped,
            retry_after,
        )


def _request(one: Arrival) -> bytes:
    document = {
        "model": "tiny",
        "prompt": one.prompt,
        "max_tokens": one.source.output_tokens,
        "stream": True,
    }
    body = json.dumps(document).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: overload\r\nconnection: close\r\ncontent-type: application/json\r\n"
        f"x-llm-d-inference-objective: {one.source.objective}\r\n"
        f"x-llm-d-inference-fairness-id: {one.source.tenant}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _read(received: bytes) -> tuple[int, str, str]:
    """The status, why the request was dropped, and `Retry-After`; the status is 0 for an answer that was cut."""
    head, found, body = received.partition(HEAD_END)
    status = _STATUS.match(head)
    if status is None or not found:
        return 0, "no answer", ""
    code = int(status[1])
    if code == 200 and _DONE not in body[-64:]:
        return 0, "cut", ""
    return code, _header(head, b"x-llm-d-request-dropped-reason"), _header(head, b"retry-after")


def _header(head: bytes, name: bytes) -> str:
    found = re.search(_HEADER % name, head, re.IGNORECASE)
    return found[1].decode(errors="replace") if found else ""
