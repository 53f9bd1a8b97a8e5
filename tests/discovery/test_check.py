"""`check URL`: the verdicts over a worker that keeps the contract, a plain server, and broken ones."""

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


@pytest.mark.parametrize("body", [b"[]", b"<html>", b"{" + b" " * 2_000_000 + b"}"])
async def test_what_discovery_cannot_use_is_broken(worker: FakeWorker, body: bytes) -> None:
    worker.body = body
    assert (await verdicts(worker))["/metadata"] is Verdict.BROKEN


async def test_nobody_there_is_broken() -> None:
    found = [finding async for finding in check_contract("http://127.0.0.1:1")]
    assert found[0].verdict is Verdict.BROKEN
    assert found[0].seen


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://x", "http://", ""])
async def test_what_is_no_url_is_an_error(url: str) -> None:
    with pytest.raises(ValueError, match="expected http://host:port"):
        _ = [finding async for finding in check_contract(url)]
