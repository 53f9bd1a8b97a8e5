"""What the picker's page shows in a real browser, while workers come, die and drain under load."""

import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from playwright.async_api import Browser, Page, expect

from adsum.portal import EventLoop
from epp.server import PickerServer
from examples.demo.cluster import MODEL, DemoCluster
from examples.demo.load import LoadGenerator
from tests.epp.local_picker import addresses, local
from tests.system.browser import PHONE, chromium, overflow, page_of

LOST = "ERR_"
"""The browser's console says that a connection failed."""
ANSWERED = "#decisions li:has-text('200 in')"
"""Not the newest: while there is load, the first row's request is still under way."""


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": EventLoop}


@pytest.fixture(scope="module")
async def browser(anyio_backend: object) -> AsyncIterator[Browser]:
    async with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
async def cluster(
    anyio_backend: object, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[DemoCluster]:
    """Of the tests that leave it as it is."""
    async with DemoCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def row(worker: str) -> str:
    return f"#pool tbody tr:has(th:has-text('{worker}'))"


async def shows(page: Page, selector: str, text: str) -> None:
    await expect(page.locator(selector).first).to_contain_text(text)


async def shows_no(page: Page, selector: str) -> None:
    await expect(page.locator(selector)).to_have_count(0)


async def test_a_decision_is_opened_by_the_keyboard(browser: Browser, cluster: DemoCluster) -> None:
    async with page_of(browser, cluster.metrics) as page:
        async with LoadGenerator(cluster.url, MODEL, users=2, max_exchanges=100):
            await shows(page, ANSWERED, "200")
        last = await page.evaluate(
            "fetch('debug/decisions').then((said) => said.json()).then(({last}) => last)"
        )
        await shows(page, "#decisions-note", f"{last} so far")  # or the first row would become the second one
        row = page.locator("#decisions li").first
        await row.locator("button").focus()
        await page.keyboard.press("Enter")
        await expect(row.locator(".detail caption")).to_have_text("Candidates")
        await expect(row.locator(".detail tbody tr")).to_have_count(3)
        await expect(row.locator(".detail tr[data-chosen='1']")).to_contain_text("the choice")
        assert await row.locator("button").get_attribute("aria-expanded") == "true"
        assert await page.locator("#decisions-hold").get_attribute("aria-pressed") == "true"
        identifier = await row.locator(".what .mono").inner_text()
        await page.keyboard.press("Enter")
        await expect(row.locator(".detail")).to_be_hidden()
        await page.fill("#decisions-id", identifier)
        await page.keyboard.press("Enter")
        await expect(page.locator("#decisions > li")).to_have_count(1)
        await page.locator("#decisions-hold").click()
        assert await page.locator("#decisions-hold").get_attribute("aria-pressed") == "false"
        assert await page.locator("#decisions > li").count() == 1, "what was asked for stays"
        tied = await page.evaluate(
            "fetch('debug/decisions?limit=1000').then((said) => said.json())"
            ".then(({decisions}) => decisions.find(({profiles}) => profiles[0]?.tie)?.request.id)"
        )
        await page.fill("#decisions-id", tied)
        await page.keyboard.press("Enter")
        await shows(page, "#decisions .mono", tied)
        await page.locator("#decisions li button").first.click()
        await shows(page, "#decisions .detail", "endpoints were equally good")
        await page.fill("#decisions-id", "no such id")
        await page.keyboard.press("Enter")
        await shows(page, "#decisions-empty", "No recorded decision fits.")


async def test_the_table_is_sorted_and_filtered(browser: Browser, cluster: DemoCluster) -> None:
    async with page_of(browser, cluster.metrics) as page:
        names = page.locator("#pool tbody th .cut:first-child")
        await expect(names).to_have_text(["worker-1", "worker-2", "worker-3"])
        await page.locator("#pool thead button").first.press("Enter")
        await expect(names).to_have_text(["worker-3", "worker-2", "worker-1"])
        sorted_by = page.locator("#pool th[aria-sort]")
        await expect(sorted_by).to_have_attribute("aria-sort", "descending")
        await page.fill("#pool-filter", "worker-2")
        await expect(names).to_have_text(["worker-2"])


async def test_a_phone_needs_no_sideways_scrolling(browser: Browser, cluster: DemoCluster) -> None:
    async with page_of(browser, cluster.metrics, size=PHONE, dark=True) as page:
        async with LoadGenerator(cluster.url, MODEL, users=2, max_exchanges=100):
            await shows(page, ANSWERED, "200")
        await page.locator("#decisions li button").first.click()
        choice = page.locator("#decisions li .detail tbody tr").first
        await expect(choice).to_be_visible()
        total = choice.locator("td[data-label='Total']")
        await expect(total).to_be_visible()
        assert re.fullmatch(r"[0-9]\.[0-9]{4}", (await total.inner_text()).split()[-1]), "near scores differ"
        await expect(choice.locator("td[data-label^='least-cost-scorer ']")).to_be_visible()
        assert await overflow(page) == 0


async def test_names_are_text_whatever_they_are(browser: Browser, cluster: DemoCluster) -> None:
    """A model's name comes from a worker, a request's id from a client."""
    script = "<img src=x onerror=alert(1)>"
    async with page_of(browser, cluster.metrics) as page:
        await page.evaluate("() => { window.alert = () => { throw new Error('a script ran') } }")
        asked = {"model": script, "messages": [{"role": "user", "content": "hello"}]}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{cluster.url}/v1/chat/completions", json=asked) as answer,
        ):
            assert answer.status == 404
        await shows(page, "#decisions", script)
        assert await page.locator("#decisions img").count() == 0


async def test_an_empty_pool_is_a_sentence_and_no_empty_table(browser: Browser) -> None:
    async with (
        PickerServer(local(discovery="static://10.244.7.1:9")) as server,
        page_of(browser, f"http://{addresses(server)['metrics']}/") as page,
    ):
        await expect(page.locator("#pool-empty")).to_be_visible()
        await expect(page.locator("#pool")).to_be_hidden()


async def test_many_endpoints_are_shown_in_parts(browser: Browser) -> None:
    async with plain_servers() as port:
        listed = ",".join(f"10.244.7.{number}:{port}" for number in range(1, 121))
        async with PickerServer(local(discovery=f"static://{listed},10.244.8.1:9")) as server:
            await parts_of_120(browser, f"http://{addresses(server)['metrics']}/")


@asynccontextmanager
async def plain_servers() -> AsyncIterator[int]:
    """Yields a port that answers 404 on each address of this network."""
    async with TestServer(web.Application(), host="0.0.0.0") as server:
        yield server.port or 0


async def parts_of_120(browser: Browser, url: str) -> None:
    async with page_of(browser, url) as page:
        rows, place = page.locator("#pool tbody tr"), page.locator(".more .aside").first
        await expect(place).to_have_text("1 to 50 of 120")
        await expect(rows).to_have_count(50)
        await page.get_by_role("button", name="Next").click()
        await page.get_by_role("button", name="Next").click()
        await expect(place).to_have_text("101 to 120 of 120")
        await expect(rows).to_have_count(20)
        await expect(page.get_by_role("button", name="Next")).to_be_disabled()
        await page.fill("#pool-filter", "10.244.7.11 ")
        await expect(rows).to_have_count(11)
        await expect(place).to_be_hidden()
        await page.locator("#absent summary").click()
        await shows(page, "#absent li:has-text('10-244-8-1-9')", "nothing listens on port 9")


async def test_a_name_that_leads_to_this_machine_opens_it_with_the_token_only(
    browser: Browser, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef-secret")
    settings = local(discovery="static://10.244.7.1:9", debug_token_file=token)
    async with PickerServer(settings) as server:
        url = f"http://picker.example:{addresses(server)['metrics'].rpartition(':')[2]}/"
        complaints = ["401", "404"]  # the second is of /favicon.ico, which Chromium wants beside plain text
        async with page_of(browser, url, password="wrong-password-here", complaints=complaints) as page:
            await expect(page.locator("body")).to_contain_text("The token of --debug-token-file is required")
        async with page_of(browser, url, password=token.read_text()) as page:
            await shows(page, "#connection", "Live")
            await shows(page, "#absent", "1 worker is known and gets no requests")


async def test_workers_come_die_and_drain(browser: Browser, tmp_path: Path) -> None:
    async with (
        DemoCluster(tmp_path) as cluster,
        page_of(browser, cluster.metrics, complaints=[LOST]) as page,
        LoadGenerator(cluster.url, MODEL, users=4, max_exchanges=100),
    ):
        await shows(page, "#connection", "Live")
        await shows(page, "#tile-endpoints dd", "3")
        for worker in ("worker-1", "worker-2", "worker-3"):
            await shows(page, row(worker), "Ready")
        await cluster.add_worker("worker-4")
        await shows(page, row("worker-4"), "Ready")
        cluster.workers["worker-1"].send(signal.SIGKILL)
        await shows_no(page, row("worker-1"))
        await shows(page, "#events li:has-text('worker-1')", "went its process has ended")
        cluster.workers["worker-2"].send(signal.SIGTERM)
        await shows(page, "#events li:has-text('worker-2')", "went it drains")
        await shows_no(page, row("worker-2"))
        await shows(page, "#tile-endpoints dd", "2")
        await shows(page, ANSWERED, "200")
        await shows(page, row("worker-3") + " td[data-label='Picks']", "%")
        cluster.workers["worker-3"].send(signal.SIGSTOP)
        await shows(page, "#events li:has-text('worker-3')", "it does not answer")
        cluster.workers["worker-3"].send(signal.SIGCONT)
        await shows(page, row("worker-3"), "Ready")
        await shows(page, "#events li:has-text('worker-3')", "back")
        cluster.picker.send(signal.SIGKILL)
        await shows(page, "#connection", "Connection lost")
