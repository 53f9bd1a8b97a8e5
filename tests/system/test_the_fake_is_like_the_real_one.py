"""The fake API server and the real one are asked the same, and answer alike: statuses, headers, documents, events."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest

from tests.kubernetes.fake.api import FakeApi
from tests.kubernetes.fake.api_server import FakeApiServer
from tests.system.api_client import Administrator
from tests.system.api_process import ApiProcess
from tests.system.transcripts import (
    ApiSpeaker,
    Reply,
    compressed,
    invalid_parameters,
    lists,
    refusals,
    watches,
    writes,
)

Script = Callable[[ApiSpeaker], AsyncIterator[tuple[str, Reply]]]


@pytest.fixture
async def real(admin: Administrator) -> AsyncIterator[ApiSpeaker]:
    namespace = await admin.namespace("test")
    async with aiohttp.ClientSession() as session:
        yield ApiSpeaker(session, admin.server.url, namespace, admin.server.token)


@pytest.fixture
async def fake(real: ApiSpeaker) -> AsyncIterator[ApiSpeaker]:
    """In it the namespace is called alike; `poor` is the token of an account without rights."""
    api = FakeApi()
    api.tokens = {"right", "poor"}
    api.poor = {"poor"}
    async with FakeApiServer(api) as server, aiohttp.ClientSession() as session:
        yield ApiSpeaker(session, server.url, real.namespace, "right")


async def differences(real: ApiSpeaker, fake: ApiSpeaker, script: Script) -> list[str]:
    """Where the fake says something else, as text."""

    async def transcript(speaker: ApiSpeaker) -> dict[str, Any]:
        for number, name in enumerate(("a", "b", "c")):
            await speaker.put(name, f"10.244.7.{number + 1}")
        return {name: reply.shape() async for name, reply in script(speaker)}

    expected, found = await asyncio.gather(transcript(real), transcript(fake))
    assert len(expected) > 0
    return [f"{name}: {told}" for name in expected for told in unlike(expected[name], found[name])]


def unlike(real: Any, fake: Any, where: str = "") -> Iterator[str]:
    """Each place where they differ."""
    if isinstance(real, dict) and isinstance(fake, dict):
        for key in sorted(real.keys() | fake.keys()):
            yield from unlike(real.get(key, "absent"), fake.get(key, "absent"), f"{where}.{key}")
    elif isinstance(real, list) and isinstance(fake, list) and len(real) == len(fake):
        for at, pair in enumerate(zip(real, fake, strict=True)):
            yield from unlike(*pair, f"{where}[{at}]")
    elif real != fake:
        yield f"{where}\n  real {json.dumps(real)}\n  fake {json.dumps(fake)}"


@pytest.mark.parametrize("script", [lists, invalid_parameters, watches, writes, compressed])
async def test_it_answers_as_the_real_one(real: ApiSpeaker, fake: ApiSpeaker, script: Script) -> None:
    told = await differences(real, fake, script)
    if script is watches:  # some live two seconds, in which a busy machine may do nothing
        told = told and await differences(real, fake, script)
        told = told and await differences(real, fake, script)
    assert not told, "\n".join(told)


async def forgotten(speaker: ApiSpeaker, forget: Callable[[], Awaitable[object]]) -> dict[str, Any]:
    """A version of before `forget`, which returns when the server has compacted it."""
    for number, name in enumerate(("a", "b", "c")):
        await speaker.put(name, f"10.244.7.{number + 1}")
    first = (await speaker.get(limit=1)).documents[0]["metadata"]
    await speaker.put("d", "10.244.7.9")
    await forget()
    old = {"resourceVersion": first["resourceVersion"]}
    replies = {
        "exact": await speaker.get(**old, resourceVersionMatch="Exact"),
        "a page": await speaker.get(limit=1, continue_=first["continue"]),
        "a watch": await speaker.get(**old, watch="true", timeoutSeconds=2),
        "not older": await speaker.get(**old, resourceVersionMatch="NotOlderThan"),
    }
    rest = replies["a page"].documents[0]["metadata"]["continue"]
    replies["the inconsistent rest"] = await speaker.get(limit=1, continue_=rest)
    shapes = {name: reply.shape() for name, reply in replies.items()}
    del shapes["a watch"]["said"][0]["object"]["message"]  # a server with its cache on says it otherwise
    return shapes


async def test_it_forgets_as_the_real_one() -> None:
    """What is too old: pages and exact versions after a compaction, watches without the server's cache."""
    arguments = ("--watch-cache=false", "--etcd-compaction-interval=1s")
    with ApiProcess(arguments=arguments) as server:
        async with Administrator(server) as admin, aiohttp.ClientSession() as session:
            real = ApiSpeaker(session, server.url, await admin.namespace("test"), server.token)

            async def compacted() -> None:
                version = await real.version()
                async with asyncio.timeout(90):
                    while (
                        await real.get(resourceVersion=version, resourceVersionMatch="Exact")
                    ).status != 410:
                        await real.put("d", f"10.244.{secrets.randbelow(250) + 1}.9")
                        await asyncio.sleep(0.2)

            expected = await forgotten(real, compacted)
            api = FakeApi()

            async def forget() -> None:
                api.log.compact()
                api.log.forget()

            async with FakeApiServer(api) as fake_server:
                fake = ApiSpeaker(session, fake_server.url, real.namespace, "")
                found = await forgotten(fake, forget)
    told = [f"{name}: {where}" for name in expected for where in unlike(expected[name], found[name])]
    assert not told, "\n".join(told)


async def test_it_refuses_as_the_real_one(real: ApiSpeaker, fake: ApiSpeaker, admin: Administrator) -> None:
    token = await admin.account_token(real.namespace, "frontend")

    def script(speaker: ApiSpeaker) -> AsyncIterator[tuple[str, Reply]]:
        return refusals(speaker, token if speaker is real else "poor")

    told = await differences(real, fake, script)
    assert not told, "\n".join(told)
