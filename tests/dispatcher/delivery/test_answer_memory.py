import asyncio

import pytest

from adsum.http1.response import ResponseTooLargeError
from dispatcher.delivery.answer_limits import AnswerMemory, AnswerMemoryError
from dispatcher.delivery.gateway import Gateway, GatewayAnswer, NoAnswer
from tests.dispatcher.listening import OK, PATH, Listening, listening, request
from tests.eventually import eventually


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
