"""`check URL`: the verdicts over a worker that keeps the contract, a plain server, and broken ones."""

import asyncio

import pytest
from aiohttp import web

from discovery.check import Verdict, check_contract
from tests.fake_worker import FakeWorker


async def verdicts(worker: FakeWorker) -> dict[str, Verdict]:
    url = f"http://127.0.0.1:{worker.port}"
    return {finding.requirement.split()[1]: finding.verdict async for finding in check_contract(url)}


async def test_a_plain_server_is_weak_where_it_is_polled_and_unverified(worker: FakeWorker) -> None:
    found = [finding async for finding in check_contract(f"http://127.0.0.1:{worker.port}")]
    assert found[0].verdict is Verdict.OK
    assert {finding.verdict for finding in found[1:]} == {Verdict.WEAK}


async def test_a_server_without_documents_is_weak(worker: FakeWorker) -> None:
    async def missing(request: web.Request) -> web.Response:
        return web.Response(status=404)

    worker.handler = missing
    assert (await verdicts(worker))["/metadata"] is Verdict.WEAK


async def test_a_key_that_readers_ignore_is_weak(worker: FakeWorker) -> None:
    worker.body = b'{"model": {"name": "m"}, "transport": {"http": {"port": "http", "prot": 1}}}'
    [ignored] = [
        finding
        async for finding in check_contract(f"http://127.0.0.1:{worker.port}")
        if finding.requirement.startswith("its known keys")
    ]
    assert ignored.verdict is Verdict.WEAK
    assert ignored.seen == (
        "transport.http.port is not a port from 1 to 65535; ignored; "
        "transport.http.'prot' is not a known key, did you mean transport.http.port?"
    )


DEEP = b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize("body", [b"[]", b"<html>", b"{" + b" " * 2_000_000 + b"}", DEEP])
async def test_what_discovery_cannot_use_is_broken(worker: FakeWorker, body: bytes) -> None:
    worker.body = body
    assert (await verdicts(worker))["/metadata"] is Verdict.BROKEN


async def test_a_document_that_comes_in_pieces_is_read_whole(worker: FakeWorker) -> None:
    async def pieces(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for piece in (b'{"model": ', b'{"name": "', b"m" * 300_000, b'"}}'):
            await response.write(piece)
            await asyncio.sleep(0.02)
        return response

    worker.handler = pieces
    assert (await verdicts(worker))["/metadata"] is Verdict.OK


async def test_an_entity_tag_that_cannot_be_sent_back_is_weak_and_shown_without_harm() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nETag: "a\x1b.b.1"\r\n'
            b"Content-Length: 2\r\nConnection: close\r\n\r\n{}"
        )
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        found = [finding async for finding in check_contract(f"http://127.0.0.1:{port}")]
    assert all(finding.seen.isprintable() for finding in found)
    assert [f.verdict for f in found if "ETag" in f.requirement] == [Verdict.WEAK]
    assert Verdict.BROKEN not in {finding.verdict for finding in found}


async def test_a_refused_connection_is_broken() -> None:
    found = [finding async for finding in check_contract("http://127.0.0.1:1")]
    assert found[0].verdict is Verdict.BROKEN
    assert found[0].seen


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://x", "http://", ""])
async def test_what_is_no_url_is_an_error(url: str) -> None:
    with pytest.raises(ValueError, match="expected http://host:port"):
        _ = [finding async for finding in check_contract(url)]
