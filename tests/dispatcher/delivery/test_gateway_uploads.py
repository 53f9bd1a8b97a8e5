"""Large request bodies, targets that answer before a body ends, and the memory that answers take."""

import asyncio
import gc
import tracemalloc

import pytest

from adsum.http1.response import ResponseTooLargeError
from dispatcher.delivery.answer_limits import AnswerMemory, AnswerMemoryError
from dispatcher.delivery.gateway import Gateway, GatewayAnswer, NoAnswer
from tests.dispatcher.listening import LARGE, OK, PATH, Listening, listening, request
from tests.eventually import eventually
from tests.open_connections import connected

TOO_LARGE = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\nno"


@pytest.mark.parametrize("closes", [False, True])
async def test_an_answer_before_the_body_was_read_is_the_answer(closes: bool) -> None:
    """What is left of the body goes nowhere, nor does another request on that connection."""

    async def refuse(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(
            TOO_LARGE if not closes else TOO_LARGE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        )
        await seen.over.wait()

    async with listening(refuse) as seen, Gateway(f"http://127.0.0.1:{seen.port}") as gateway:
        for number in (1, 2):
            assert await gateway.post(PATH, {}, b"x" * LARGE, 90) == GatewayAnswer(413, b"no")
            assert seen.connections == number
            await eventually(lambda: not connected(seen.port))


async def test_an_answer_while_the_body_is_still_read_ends_the_upload() -> None:
    """The target reads on: it does not get what is left of the body, only a connection that ended."""
    taken: list[int] = []

    async def hasty(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(1_000_000)
        writer.write(TOO_LARGE)
        answered.set()
        await go_on.wait()
        taken.append(1_000_000)
        while part := await reader.read(1_000_000):
            taken.append(len(part))

    answered, go_on = asyncio.Event(), asyncio.Event()
    async with listening(hasty) as seen, Gateway(f"http://127.0.0.1:{seen.port}") as gateway:
        posting = asyncio.create_task(gateway.post(PATH, {}, b"x" * LARGE, 90))
        await answered.wait()
        assert await posting == GatewayAnswer(413, b"no")
        go_on.set()
        another = asyncio.create_task(gateway.post(PATH, {}, b"x", 90))
        await eventually(lambda: seen.connections == 2)
        another.cancel()
        await asyncio.wait([another])
    assert sum(taken) < LARGE


@pytest.mark.parametrize("size", [100_000, LARGE])
async def test_21_cancelled_in_the_middle_of_a_body_nothing_is_left_of_it(size: int) -> None:
    """Neither its connection nor the task that wrote it."""

    async def stall(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        begun.set()
        await seen.over.wait()

    begun = asyncio.Event()
    async with listening(stall) as seen, Gateway(f"http://127.0.0.1:{seen.port}") as gateway:
        posting = asyncio.create_task(gateway.post(PATH, {}, b"x" * size, 60))
        await begun.wait()
        await asyncio.wait([posting], timeout=0.3)  # until the kernel takes no more of it
        posting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await posting
        assert not [task for task in asyncio.all_tasks() if "_write" in repr(task.get_coro())]
        await eventually(lambda: not connected(seen.port))


async def test_a_slow_target_does_not_make_us_hold_its_body_twice() -> None:
    async def stall(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await seen.over.wait()

    body = b"x" * (3 * LARGE)
    async with listening(stall) as seen, Gateway(f"http://127.0.0.1:{seen.port}") as gateway:
        tracemalloc.start()
        try:
            assert await gateway.post(PATH, {}, body, 0.3) == NoAnswer("no answer within 0.3 s")
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most < 4_000_000


@pytest.mark.parametrize("politely", [False, True])
async def test_15_a_target_that_ends_the_connection_in_the_middle_of_a_body(
    politely: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, as the answer; the task that wrote has nothing to add."""

    async def end(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1_000_000)
        if not politely:
            writer.transport.abort()
            return
        writer.write_eof()
        while await reader.read(1_000_000):
            pass

    async with listening(end) as seen, Gateway(f"http://127.0.0.1:{seen.port}") as gateway:
        said = await gateway.post(PATH, {}, b"x" * LARGE, 90)
        assert isinstance(said, NoAnswer)
        assert said.reason.startswith("the connection ended")
        assert (said.final, said.reached, seen.connections) == (False, True, 1)
        gc.collect()
    assert not caplog.records


def test_the_largest_answer_that_arrives_gives_way() -> None:
    memory, ended = AnswerMemory(100), list[str]()
    large = memory.arriving(lambda: ended.append("large"))
    small = memory.arriving(lambda: ended.append("small"))
    large.receive(70)
    small.receive(30)
    small.receive(1)
    assert (ended, memory.held, large.evicted) == (["large"], 31, True)
    with pytest.raises(AnswerMemoryError):
        large.receive(1)  # bytes that were on their way
    large.release()
    assert memory.held == 31


def test_who_asks_for_more_and_is_the_largest_ends_itself() -> None:
    memory = AnswerMemory(100)
    large, small = memory.arriving(pytest.fail), memory.arriving(pytest.fail)
    large.receive(70)
    small.receive(30)
    with pytest.raises(AnswerMemoryError, match=r"take 100 bytes \(answer_memory\)"):
        large.receive(1)
    with pytest.raises(ResponseTooLargeError):
        small.receive(71)  # alone it would not fit either


def test_a_complete_answer_is_kept_until_the_broker_has_it() -> None:
    memory = AnswerMemory(100)
    complete, arriving = memory.arriving(pytest.fail), memory.arriving(pytest.fail)
    complete.receive(95)
    complete.complete(90)
    with pytest.raises(AnswerMemoryError):
        arriving.receive(11)
    complete.release()
    complete.release()
    arriving.receive(11)
    assert memory.held == 11


async def test_answers_without_end_do_not_stop_others() -> None:
    """Without the limit each may be 64 MiB."""

    async def serve(seen: Listening, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await request(seen, reader)
            if body == b"short":
                writer.write(OK)
                continue
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            while body == b"endless":
                writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                await writer.drain()
            writer.write(b"8000\r\n" + b"x" * 0x8000)
            await reader.read(1)

    memory = AnswerMemory(100_000)
    most = 0
    async with listening(serve) as seen, Gateway(f"http://127.0.0.1:{seen.port}", memory=memory) as gateway:
        stalled = [asyncio.create_task(gateway.post(PATH, {}, b"stalled", 600)) for _ in range(2)]
        await eventually(lambda: memory.held > 0x10000)
        endless = [asyncio.create_task(gateway.post(PATH, {}, b"endless", 600)) for _ in range(4)]
        while not all(task.done() for task in endless):
            most = max(most, memory.held)
            await asyncio.sleep(0)
        for task in endless:
            said = task.result()
            assert isinstance(said, NoAnswer)
            assert "answer_memory" in said.reason or "larger than 100000 bytes" in said.reason
        answer = await gateway.post(PATH, {}, b"short", 600)
        assert answer == GatewayAnswer(200, b"ok")
        assert isinstance(answer, GatewayAnswer)
        assert answer.held is not None
        answer.held.release()
        assert most <= 100_000
        for task in stalled:
            task.cancel()
        await asyncio.wait(stalled)
        assert memory.held == 0, "cancelled or ended: nothing is counted any more"
