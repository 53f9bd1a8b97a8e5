"""Sends requests to a FakeApi without a transport."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.calls import Answer, Call
from tests.kubernetes.fake.rv_log import Object

SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


def call(params: Mapping[str, object], headers: Mapping[str, str] | None = None, path: str = SLICES) -> Call:
    return Call("GET", path, {k: str(v) for k, v in params.items()}, headers or {})


async def body(answer: Answer) -> bytes:
    return b"".join([chunk async for chunk in answer.body])


async def read(api: FakeApi, path: str = SLICES, /, **params: object) -> Any:
    """The answer to a list or a get, decoded; a Status has its HTTP status in `code`."""
    return json.loads(await body(await api.answer(call(params, path=path))))


class Stream:
    """One open watch, read line by line."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    async def line(self, within: float = 1.0) -> Object:
        async with asyncio.timeout(within):
            document: Object = json.loads(await anext(self.answer.body))
            return document

    async def silent(self, seconds: float) -> bool:
        reading = asyncio.ensure_future(anext(self.answer.body))
        done, _ = await asyncio.wait([reading], timeout=seconds)
        reading.cancel()
        await asyncio.wait([reading])
        return not done

    async def rest(self) -> list[Object]:
        return [json.loads(line) async for line in self.answer.body]


async def watch(api: FakeApi, **params: object) -> Stream:
    return Stream(await api.answer(call({"watch": 1, **params})))
