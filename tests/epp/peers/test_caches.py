"""A picker that starts learns from another what workers do not send again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from grpc import StatusCode, aio, method_handlers_generic_handler

from epp.peers import caches
from epp.peers.caches import METHOD, PeerCaches
from epp.peers.link import SERVICE
from epp.scheduling.kv_events.event_stream import Knowledge
from tests.epp.kv_events.publishing_worker import PublishingWorker
from tests.epp.kv_events.test_feed import OTHER, PROMPT, Pool, config, until

pytestmark = pytest.mark.anyio


def of(pool: Pool, *addresses: str) -> PeerCaches:
    return PeerCaches(pool.feed, aio.insecure_channel, lambda: addresses, SERVICE)


@asynccontextmanager
async def served(answering: PeerCaches) -> AsyncIterator[str]:
    server = aio.server()
    handlers = {METHOD: answering.handler}
    server.add_generic_rpc_handlers((method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def test_a_newcomer_is_told_what_workers_hold() -> None:
    async with PublishingWorker(keeps=3) as worker:
        knowing, newcomer = Pool([worker], config()), Pool([worker], config())
        for pool in (knowing, newcomer):
            pool.producer.use_seed(7)
        async with served(of(knowing)) as address:
            newcomer.feed.ask_peers = of(newcomer, "127.0.0.1:1", address).ask
            async with knowing.feed:
                await until(knowing.is_exact)
                await worker.hold(PROMPT)
                for number in range(10):
                    await worker.hold(f"{number:<16d}")
                await until(lambda: knowing.blocks(0) == 26)
                async with newcomer.feed:
                    await until(lambda: newcomer.is_exact() and newcomer.blocks(0) == 26)
                    await worker.drop(PROMPT)
                    await until(lambda: newcomer.blocks(0) == 10)
                    await worker.restart()  # and no peer knows of its blocks before
                    await worker.hold(OTHER)
                    await until(
                        lambda: newcomer.knowledge() == [Knowledge.EXACT] and newcomer.blocks(0) == 16
                    )


async def test_nothing_is_told_of_a_worker_that_is_not_known() -> None:
    pool = Pool([], config())
    async with pool.feed, served(of(pool)) as address, aio.insecure_channel(address) as channel:
        call = channel.unary_stream(f"/{SERVICE}/{METHOD}")
        assert not [part async for part in call(msgspec.msgpack.encode(["w9", "a", "tcp://127.0.0.1:5557"]))]
        for wrong in (b"", b"\xc1", bytes(5000), msgspec.msgpack.encode([1, 2, 3])):
            with pytest.raises(aio.AioRpcError) as refused:
                await call(wrong).read()
            assert refused.value.code() is StatusCode.INVALID_ARGUMENT


async def test_a_peer_that_does_not_read_keeps_no_other_from_being_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unread:
        async def write(self, part: bytes) -> None:
            await asyncio.Event().wait()

        async def abort(self, code: StatusCode, details: str) -> None:
            raise aio.AbortError(code)

    monkeypatch.setattr(caches, "_TIMEOUT", 0.2)
    pool = Pool([], config())
    monkeypatch.setattr(caches, "written", lambda found: [b"part"])
    monkeypatch.setattr(pool.feed, "snapshot", lambda key, events: asyncio.sleep(0, "found"))
    answer = of(pool)._answer
    wanted = msgspec.msgpack.encode(["w0", "a", "tcp://127.0.0.1:5557"])
    for _ in range(2):
        with pytest.raises(aio.AbortError):
            await answer(wanted, Unread())  # type: ignore[arg-type]
