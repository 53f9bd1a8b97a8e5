"""Streams between pickers: one that ends early, what is forwarded over one, and those between processes."""

import asyncio
import socket
from pathlib import Path

import pytest
from grpc import aio

from adsum.tasks import background
from epp.peers.credentials import PeerCredentials
from epp.peers.link import LocalStream
from epp.peers.subscriber import MOST_MESSAGE, PeerFaultError
from tests.epp.peers.pickers import connections_with_one


async def test_a_peer_whose_own_stream_ended_before_it_told_anything_is_asked_again() -> None:
    connections = connections_with_one()
    [link] = connections.links.values()
    tried = asyncio.Event()
    waiting = asyncio.create_task(connections._until_gone(link.name, link.address, tried))
    await asyncio.sleep(0)
    connections._link_ended(link, None)
    async with asyncio.timeout(60):
        await waiting
    assert tried.is_set()


async def test_the_start_waits_for_a_second_attempt_at_one_that_does_not_answer() -> None:
    """Otherwise a picker that starts on a busy machine would serve, and the busy one would count nothing of what it sends."""
    connections, tried = connections_with_one(), asyncio.Event()
    connections.credentials = PeerCredentials(None, b"")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        connections._dialed[address] = ""
        async with background(connections._keep(address, tried)), asyncio.timeout(60):
            await tried.wait()
        listening.settimeout(0)
        for _ in range(2):
            listening.accept()[0].close()
        assert connections._dialed[address] == "it did not answer"


async def test_the_log_says_which_side_ended(caplog: pytest.LogCaptureFixture) -> None:
    connections = connections_with_one()
    [link] = connections.links.values()
    connections._link_ended(link, asyncio.CancelledError())
    assert caplog.messages[-1].endswith("nothing that it sent counts: its connection broke")
    connections.links[link.name] = link
    connections._begin_end()
    connections._link_ended(link, asyncio.CancelledError())
    assert caplog.messages[-1].endswith("nothing that it sent counts: this picker ends")


async def test_long_entries_of_a_log_are_several_messages() -> None:
    """A client decides how long they are, and a message that is too large would end the stream."""
    [link] = connections_with_one().links.values()
    entries = [bytes([number]) * 60_000 for number in range(200)]
    for entry in entries:
        link.forward(entry)
    parts = []
    while link._entries:
        parts.append(link._next_entries())
    assert [entry for part in parts for entry in part] == entries
    assert max(sum(map(len, part)) for part in parts) < MOST_MESSAGE / 2
    assert len(parts) < 20


async def test_a_stream_that_ends_while_it_is_written_to_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Ended:
        async def read(self) -> object:
            return aio.EOF

        async def write(self, message: bytes) -> None:
            raise asyncio.InvalidStateError("the RPC is over")

    [link] = connections_with_one().links.values()
    async with asyncio.timeout(60):
        await link.converse(Ended())
    assert caplog.messages == []


async def test_processes_tell_each_other_messages_of_any_size_until_one_ends_or_sends_too_much(
    tmp_path: Path,
) -> None:
    path, accepted = str(tmp_path / "news"), asyncio.Queue[LocalStream]()
    server = await asyncio.start_unix_server(lambda *both: accepted.put_nowait(LocalStream(*both)), path)
    async with asyncio.timeout(60), server:
        for last, cut in ((b"\0\0\0\x09half", True), (b"\xff" * 4, False)):
            reader, writer = await asyncio.open_unix_connection(path)
            one, other = LocalStream(reader, writer), await accepted.get()
            for message in (b"", b"news", b"n" * MOST_MESSAGE):
                writing = asyncio.create_task(one.write(message))
                assert await other.read() == message
                await writing
            writer.write(last)
            if cut:
                one.close()
                assert await other.read() is aio.EOF
            else:
                with pytest.raises(PeerFaultError, match="4294967295 bytes; expected 4194304 at most"):
                    await other.read()
                one.close()
            other.close()
