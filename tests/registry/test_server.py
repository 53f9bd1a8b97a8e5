"""The wire contract over real sockets, on its own port and inside another application."""

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from discovery.check import Verdict, check_contract
from discovery.errors import RegistrationError
from discovery.instance import InstanceStatus
from registry.contract import Contract
from registry.document import PublishedDocument
from registry.server import ContractServer, add_routes, application
from tests.eventually import eventually
from tests.kubernetes.fake.authority import Authority

Serve = Callable[[Contract], Awaitable[str]]


def bound(document: PublishedDocument, **options: object) -> Contract:
    contract = Contract(**options)  # type: ignore[arg-type]  # what each test names
    contract.bind(document)
    return contract


def hold(document: PublishedDocument, wait: float = 30) -> dict[str, str]:
    return {"If-None-Match": document.current.etag, "Prefer": f"wait={wait:g}"}


async def test_keeps_the_contract(serve: Serve, document: PublishedDocument) -> None:
    document.set_status(InstanceStatus.READY)
    document.set_metadata({"model": {"name": "m"}})
    url = await serve(bound(document))
    findings = [finding async for finding in check_contract(url)]
    assert {finding.verdict for finding in findings} == {Verdict.OK}, findings


async def test_unregistered_answers_503_and_lives(serve: Serve, client: aiohttp.ClientSession) -> None:
    url = await serve(Contract())
    statuses = []
    for path in ("/metadata", "/health", "/live", "/other"):
        async with client.get(url + path) as response:
            statuses.append(response.status)
    assert statuses == [503, 503, 200, 404]


async def test_probe_follows_the_status_and_metadata_still_answers_while_draining(
    serve: Serve, client: aiohttp.ClientSession, document: PublishedDocument
) -> None:
    url = await serve(bound(document))
    for status, expected in (("not_ready", 503), ("ready", 200), ("draining", 503)):
        document.set_status(InstanceStatus(status))
        async with client.get(f"{url}/health") as response:
            assert response.status == expected
            assert await response.json() == {"status": status, "instance_id": "decode-1"}
        async with client.get(f"{url}/metadata") as response:
            assert (response.status, response.headers["Instance-Status"]) == (200, status)


async def test_held_get_answers_when_the_document_changes(
    serve: Serve, client: aiohttp.ClientSession, document: PublishedDocument
) -> None:
    contract = bound(document)
    url = await serve(contract)
    for change in (
        lambda: document.set_metadata({"a": 1}),
        lambda: document.set_status(InstanceStatus.READY),
        lambda: document.set_status(InstanceStatus.DRAINING),
    ):
        get = asyncio.create_task(client.get(f"{url}/metadata", headers=hold(document)))
        await eventually(lambda: contract.held == 1)
        change()
        async with await get as response:
            assert response.status == 200
            assert response.headers["Preference-Applied"] == "wait=30"
            assert response.headers["ETag"] == document.current.etag


async def test_held_get_answers_304_when_time_is_up(
    serve: Serve, client: aiohttp.ClientSession, document: PublishedDocument
) -> None:
    url = await serve(bound(document, max_wait=0.2))
    started = asyncio.get_running_loop().time()
    async with client.get(f"{url}/metadata", headers=hold(document)) as response:
        assert (response.status, response.headers["Preference-Applied"]) == (304, "wait=0.2")
        assert await response.read() == b""
    assert asyncio.get_running_loop().time() - started > 0.15


async def test_a_change_from_another_thread_ends_held_gets(
    serve: Serve, client: aiohttp.ClientSession, document: PublishedDocument
) -> None:
    contract = bound(document)
    url = await serve(contract)
    get = asyncio.create_task(client.get(f"{url}/metadata", headers=hold(document)))
    await eventually(lambda: contract.held == 1)
    await asyncio.to_thread(document.set_metadata, {"from": "a thread"})
    async with await asyncio.wait_for(get, 90) as response:
        assert await response.json() == {"from": "a thread"}


async def test_held_gets_are_bounded_and_given_back_when_the_reader_goes(
    serve: Serve, client: aiohttp.ClientSession, document: PublishedDocument
) -> None:
    contract = bound(document, max_held=2)
    url = await serve(contract)
    held = [asyncio.create_task(client.get(f"{url}/metadata", headers=hold(document))) for _ in range(2)]
    await eventually(lambda: contract.held == 2)
    async with client.get(f"{url}/metadata", headers=hold(document)) as response:
        assert response.status == 304
        assert "Preference-Applied" not in response.headers
    for get in held:
        get.cancel()
    await eventually(lambda: contract.held == 0)


async def test_stopping_ends_held_gets(
    serve: Serve, client: aiohttp.ClientSession, document: PublishedDocument
) -> None:
    contract = bound(document)
    server = ContractServer(contract, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{await server.start()}"
    get = asyncio.create_task(client.get(f"{url}/metadata", headers=hold(document)))
    await eventually(lambda: contract.held == 1)
    contract.unbind()
    await asyncio.wait_for(server.aclose(), 90)
    async with await asyncio.wait_for(get, 90) as response:
        assert (response.status, response.headers["Instance-Status"]) == (200, "draining")
    with pytest.raises(aiohttp.ClientConnectionError):
        await client.get(f"{url}/live")


async def test_head_has_the_headers_and_no_body(
    serve: Serve, client: aiohttp.ClientSession, document: PublishedDocument
) -> None:
    document.set_metadata({"a": 1})
    url = await serve(bound(document))
    async with client.head(f"{url}/metadata") as response:
        assert (response.status, response.headers["ETag"]) == (200, document.current.etag)
        assert response.headers["Content-Length"] == str(len(document.current.body))
        assert await response.read() == b""
    async with client.post(f"{url}/metadata") as response:
        assert response.status == 405


async def test_several_header_lines_are_one_field(serve: Serve, document: PublishedDocument) -> None:
    url = await serve(bound(document))
    port = int(url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b'GET /metadata HTTP/1.1\r\nHost: x\r\nIf-None-Match: "a"\r\nIf-None-Match: '
        + document.current.etag.encode()
        + b"\r\nConnection: close\r\n\r\n"
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 304")
    writer.close()
    await writer.wait_closed()


async def test_token_guards_the_metadata_but_not_the_probes(
    serve: Serve, client: aiohttp.ClientSession, document: PublishedDocument
) -> None:
    document.set_status(InstanceStatus.READY)
    url = await serve(bound(document, token="s3cret-ü"))
    for given in (None, "Bearer wrong", "s3cret-ü", "Bearer s3cret-üx"):
        headers = {} if given is None else {"Authorization": given}
        async with client.get(f"{url}/metadata", headers=headers) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"].startswith("Bearer")
            assert b"s3cret" not in await response.read()
    async with client.get(f"{url}/metadata", headers={"Authorization": "Bearer s3cret-ü"}) as response:
        assert response.status == 200
    for path in ("/health", "/live"):
        async with client.get(url + path) as response:
            assert response.status == 200


async def test_tls(client: aiohttp.ClientSession, document: PublishedDocument, tmp_path: Path) -> None:
    authority = Authority("workers")
    trusted = ssl.create_default_context(cadata=authority.pem.decode())
    server = ContractServer(bound(document), "127.0.0.1", 0, ssl_context=authority.server_context(tmp_path))
    port = await server.start()
    try:
        async with client.get(f"https://127.0.0.1:{port}/metadata", ssl=trusted) as response:
            assert response.status == 200
    finally:
        await server.aclose()


async def test_a_taken_port_says_so(document: PublishedDocument) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for host in ("127.0.0.1", None):
            with pytest.raises(RegistrationError, match=rf":{port}: Address already in use; expected"):
                await ContractServer(bound(document), host, port).start()
    with pytest.raises(RegistrationError, match="nowhere.invalid:0: .*address of this machine"):
        await ContractServer(bound(document), "nowhere.invalid", 0).start()


async def test_mounts_in_an_application_and_under_a_prefix(
    client: aiohttp.ClientSession, document: PublishedDocument
) -> None:
    app, contract = web.Application(), bound(document)
    add_routes(app, contract)
    app.add_subapp("/worker", application(contract))
    async with TestServer(app) as server:
        for path in ("/metadata", "/worker/metadata"):
            async with client.get(server.make_url(path)) as response:
                assert (response.status, json.loads(await response.read())) == (200, {})


def test_a_contract_answers_for_one_instance_at_a_time(document: PublishedDocument) -> None:
    contract = bound(document)
    with pytest.raises(RegistrationError, match="already serves instance 'decode-1'"):
        contract.bind(PublishedDocument.of("decode-2", "life1"))
    contract.unbind()
    contract.bind(PublishedDocument.of("decode-2", "life1"))
