"""Sends the requests of a workload when they are due, and notes when text first comes and when an answer ends.

It reads as cheaply as it can, because it shares the machine with what it measures: one connection for each request, no
parsing while bytes come. All seconds are simulated ones.
"""

import asyncio
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.routing.figures import Answer
from benchmarks.routing.workloads import Turn
from benchmarks.streamed_answer import HEAD_END, StreamedAnswer

_TIMEOUT: Final = 300.0
_SERVED_BY: Final = re.compile(rb"\r\n(?:x-served-by|x-inference-pod): *(\S+)\r\n", re.IGNORECASE)
_TOKEN: Final = re.compile(r"(...).")
_DONE: Final = b"data: [DONE]\n\n"


def session(turn: Turn | None) -> Iterator[Turn]:
    """The turn, and all that follow it."""
    while turn is not None:
        yield turn
        turn = turn.then


@dataclass(frozen=True, slots=True)
class Asking:
    """`in_words`: the fourth letter of each token becomes a blank."""

    streamed: bool
    in_words: bool = False

    def request(self, turn: Turn) -> bytes:
        given = {"stream": True, "stream_options": {"include_usage": True}} if self.streamed else {}
        prompt = _TOKEN.sub(r"\1 ", turn.prompt) if self.in_words else turn.prompt
        body = json.dumps(
            {"model": turn.model, "prompt": prompt, "max_tokens": turn.output_tokens, **given}
        ).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: routing\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class Users:
    """Sends `turns` to `ports`, those of Envoys, in turn. `late`: how much later than planned each request left."""

    def __init__(self, ports: Sequence[int], turns: Sequence[Turn], speed: float, asking: Asking) -> None:
        self.late: list[float] = []
        self._ports = ports
        self._speed = speed
        self._streamed = asking.streamed
        # written before anything is measured
        self._planned = [[(one, asking.request(one)) for one in session(turn)] for turn in turns]
        self._start = 0.0
        self._sent = 0

    async def send(self, start: float) -> list[Answer]:
        """Returns all answers; those of a session end where one failed. `start`: on the clock of `time.monotonic`."""
        self._start = start
        sessions = await asyncio.gather(*(self._session(planned) for planned in self._planned))
        return [answer for answers in sessions for answer in answers]

    async def _session(self, planned: Sequence[tuple[Turn, bytes]]) -> list[Answer]:
        answers, due = list[Answer](), 0.0
        for turn, request in planned:
            due += turn.at
            await asyncio.sleep(self._start + due / self._speed - time.monotonic())
            self.late.append(self._now() - due)
            answers.append(await self._ask(request))
            if answers[-1].failed:
                break
            due = answers[-1].ended
        return answers

    async def _ask(self, request: bytes) -> Answer:
        port = self._ports[self._sent % len(self._ports)]
        self._sent += 1
        asked = self._now()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_TIMEOUT):
                transport, exchange = await loop.create_connection(
                    lambda: StreamedAnswer(request), "127.0.0.1", port
                )
                try:
                    ended = self._simulated(await exchange.ended)
                finally:
                    transport.abort()
            worker, usage = _parse(exchange.received, streamed=self._streamed)
        except (OSError, TimeoutError, ValueError, KeyError):
            return Answer(asked, self._now(), self._now(), "", 0, 0, failed=True)
        # an answer that is not streamed comes in several reads, and the first says nothing
        first = self._simulated(exchange.first) if self._streamed else ended
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return Answer(asked, first, ended, worker, usage["prompt_tokens"], cached, usage["completion_tokens"])

    def _now(self) -> float:
        return self._simulated(time.monotonic())

    def _simulated(self, at: float) -> float:
        return (at - self._start) * self._speed


def _parse(received: bytes, *, streamed: bool) -> tuple[str, Mapping[str, Any]]:
    """The worker's name and the usage of a whole answer; raises ValueError or KeyError for anything else."""
    head, _, body = received.partition(HEAD_END)
    if not head.startswith(b"HTTP/1.1 200 ") or (served := _SERVED_BY.search(head + b"\r\n")) is None:
        raise ValueError(head.decode(errors="replace"))
    if b"\r\ntransfer-encoding: chunked" in head.lower():
        body = b"".join(_chunks(body))
    if streamed:
        if not body.endswith(_DONE):
            raise ValueError("the answer was cut")
        body = body.removesuffix(_DONE).rstrip().rpartition(b"data: ")[2]
    return served[1].decode(), json.loads(body)["usage"]


def _chunks(body: bytes) -> Iterator[bytes]:
    start = 0
    while True:
        line = body.index(b"\r\n", start)
        size = int(body[start:line], 16)
        if not size:
            return
        yield body[line + 2 : line + 2 + size]
        start = line + 2 + size + 2
