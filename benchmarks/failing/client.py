"""Sends requests at a steady rate, and notes why each that failed did."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import aiohttp

OK: Final = "answered"
_TOKENS: Final = 12


class SteadyUsers:
    """`streamed`: the share of requests whose answer is streamed. `patience`: seconds for a whole answer.

    `prompt`: of the request with this number.
    """

    def __init__(
        self,
        port: int,
        *,
        rate: float,
        streamed: float,
        patience: float,
        seed: int,
        prompt: Callable[[int], str] = "request {}".format,
    ) -> None:
        self._prompt = prompt
        self._url = f"http://127.0.0.1:{port}/v1/completions"
        self._gap = 1.0 / rate
        self._streamed = streamed
        self._patience = patience
        self._rng = random.Random(seed)

    async def send(self, seconds: float) -> Counter[str]:
        """What became of all requests, by cause."""
        loop = asyncio.get_running_loop()
        begun, count = loop.time(), int(seconds / self._gap)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
            tasks = []
            for number in range(count):
                await asyncio.sleep(begun + number * self._gap - loop.time())
                streamed = self._rng.random() < self._streamed
                tasks.append(group.create_task(self._ask(session, number, streamed=streamed)))
        return Counter(task.result() for task in tasks)

    async def _ask(self, session: aiohttp.ClientSession, number: int, *, streamed: bool) -> str:
        body = {"model": "tiny", "prompt": self._prompt(number), "max_tokens": _TOKENS, "stream": streamed}
        status = 0
        try:
            async with asyncio.timeout(self._patience), session.post(self._url, json=body) as answer:
                status = answer.status
                text = await answer.read()
        except TimeoutError:
            return (
                f"not whole within {self._patience:g} s"
                if status == 200
                else f"no answer within {self._patience:g} s"
            )
        except aiohttp.ClientError:
            return "cut after it began" if status == 200 else "cut before it began"
        if status == 200:
            return OK if not streamed or b"[DONE]" in text else "cut after it began"
        return f"{status} {_code(text)}".strip()


def _code(text: bytes) -> str:
    """What Envoy or the picker says, nothing for a worker's answer."""
    try:
        error: Any = json.loads(text)["error"]
        return str(error.get("code") or "of the worker")
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
