"""Generates load through Envoy: concurrent chats with shared system prompts, two of three streamed."""

import asyncio
import itertools
import json
import random
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

_SYSTEM_PROMPTS = [
    f"You are assistant number {number}. " + "Answer in a friendly way. " * 40 for number in range(6)
]
_QUESTIONS = [
    "Who is there?",
    "Where do I find the harbour?",
    "Tell me a scenario of a lighthouse.",
    "And then?",
]


@dataclass(slots=True, eq=False)
class Exchange:
    """One request as its user saw it. Times are monotonic seconds; `failure` says why the response is not complete."""

    streamed: bool
    started: float
    worker: str | None = None
    first_token: float | None = None
    ended: float | None = None
    failure: str | None = None
    about: str = ""
    """The system prompt."""
    prompt: int | None = None
    cached: int | None = None
    """Tokens, as the answer's usage says: of the prompt, and those of it that the worker had in its cache."""

    def read_usage(self, answer: bytes) -> None:
        usage = json.loads(answer).get("usage")
        if usage is not None:
            self.prompt = usage["prompt_tokens"]
            self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


class LoadGenerator:
    """A closed loop of `users` users, each with one request at a time. Entering starts them; leaving waits for running
    requests. `max_exchanges`: how many of the latest exchanges are kept; None: all. `new_words`: each question is about so many words
    that nobody sent before; None: about none.
    """

    def __init__(
        self,
        url: str,
        model: str,
        users: int = 20,
        *,
        max_exchanges: int | None = None,
        new_words: tuple[int, int] | None = None,
    ) -> None:
        self._new_words = new_words
        self.exchanges: deque[Exchange] = deque(maxlen=max_exchanges)
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._users = users
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None
        self._numbers = itertools.count()
        self._random = random.Random(1)

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=30.0)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        self._tasks = [asyncio.create_task(self._run_user(self._session)) for _ in range(self._users)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Send no new requests; returns when the last response is complete."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)
        if self._session is not None:
            await self._session.close()

    def in_flight(self, worker: str, *, streamed: bool) -> int:
        """The number of responses that this worker is sending now."""
        return sum(e.ended is None and e.worker == worker and e.streamed == streamed for e in self.exchanges)

    async def _run_user(self, session: aiohttp.ClientSession) -> None:
        while not self._stopping.is_set():
            exchange = Exchange(streamed=next(self._numbers) % 3 != 0, started=time.monotonic())
            self.exchanges.append(exchange)
            try:
                await self._send(session, exchange)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                exchange.failure = f"{'cut while it streamed' if exchange.first_token else 'no response'} ({type(error).__name__})"
            exchange.ended = time.monotonic()
            await asyncio.sleep(self._random.uniform(0.0, 0.1))

    async def _send(self, session: aiohttp.ClientSession, exchange: Exchange) -> None:
        messages = [
            {"role": "system", "content": self._random.choice(_SYSTEM_PROMPTS)},
            {"role": "user", "content": self._random.choice(_QUESTIONS)},
        ]
        if self._new_words is not None:
            count = self._random.randint(*self._new_words)
            text = " ".join(f"{self._random.randrange(1000):03}" for _ in range(count))
            messages.insert(1, {"role": "user", "content": text})
        exchange.about = messages[0]["content"]
        max_tokens = self._random.randint(20, 80)
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "max_tokens": max_tokens,
            "stream": exchange.streamed,
        }
        if exchange.streamed:
            body["stream_options"] = {"include_usage": True}
        async with session.post(self._url, json=body) as response:
            exchange.worker = response.headers.get("x-served-by")
            if response.status != 200:
                exchange.failure = f"HTTP {response.status}: {(await response.text())[:120]}"
            elif exchange.streamed:
                await _read_stream(response, exchange)
            else:
                exchange.read_usage(await response.read())


async def _read_stream(response: aiohttp.ClientResponse, exchange: Exchange) -> None:
    last = b""
    async for line in response.content:
        if line.startswith(b"data: "):
            last = line
            if line.startswith(b'data: {"error"'):
                exchange.failure = line.decode(errors="replace").strip()[:200]
            if exchange.first_token is None and _has_text(line):
                exchange.first_token = time.monotonic()
            if b'"usage"' in line:
                exchange.read_usage(line.removeprefix(b"data: "))
    if last.strip() != b"data: [DONE]" and exchange.failure is None:
        exchange.failure = "ended before it was done"


def _has_text(line: bytes) -> bool:
    if line.strip() == b"data: [DONE]":
        return False
    choices = json.loads(line.removeprefix(b"data: ")).get("choices") or [{}]
    return bool(choices[0].get("delta", {}).get("content"))
