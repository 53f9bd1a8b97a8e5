"""docs/wire-contract.md shows what a worker of ours answers, and what `python -m discovery check` says of it."""

import json
import re
from pathlib import Path

import aiohttp

import registry
from discovery.check import check_contract
from discovery.instance import METADATA_PATH

PAGE = (Path(__file__).parents[2] / "docs" / "wire-contract.md").read_text()
ETAG = re.compile(r'"[0-9a-f]{16}\.[0-9a-f]{8}\.[0-9]+"')

HTTP = {"content-type", "content-length", "date", "server"}
"""Headers that any HTTP server sends."""


async def test_the_page_shows_what_is_checked_and_answered(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    async with (
        registry.open(tmp_path.as_uri()).register_instance("dynamo", "decode") as worker,
        aiohttp.ClientSession() as session,
    ):
        worker.set_metadata({"model": {"name": "tiny"}})
        worker.set_ready("ready")
        url = f"http://{worker.instance.authority}"
        async for finding in check_contract(url):
            assert f"\n{finding.verdict:7}{finding.requirement}\n" in PAGE
        async with session.get(url + METADATA_PATH) as answer:
            for name in {name.lower() for name in answer.headers} - HTTP:
                assert f"| `{name}` |" in PAGE.lower()
            etag = answer.headers["ETag"]
            assert ETAG.fullmatch(etag)
        asked = {"If-None-Match": etag, "Prefer": "wait=2"}
        async with session.get(url + METADATA_PATH, headers=asked) as answer:
            assert answer.status == 304
            assert f"Preference-Applied: {answer.headers['Preference-Applied']}\n" in PAGE
        async with session.get(url + "/health") as answer:
            assert set(json.loads(await answer.read())) == {"status", "instance_id"}
    shown = ETAG.findall(PAGE)
    assert len(shown) == 2
    assert len(set(shown)) == 1
