"""What the page of `adsum discovery serve` shows in a real browser while workers come, drain, freeze and die."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

import registry
from tests.discovery.web.test_serve import serve
from tests.owner_process import owner
from tests.started import next_line, started
from tests.system.browser import PHONE, overflow, page_of, wider_tables

WORKER = """
import asyncio, sys
import registry

async def main():
    async with registry.open(sys.argv[1], address="127.0.0.1", instance_id=sys.argv[2]) as opened:
        handle = await opened.register_instance("prod", "decode")
        handle.set_metadata({"model": {"name": sys.argv[3]}})
        handle.set_ready("ready")
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
LOST = "ERR_"
"""The browser's console says that a connection failed."""


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "root").mkdir(mode=0o700)
    return f"file://{tmp_path}/root"


@asynccontextmanager
async def worker(root: str, name: str, model: str = "llama") -> AsyncIterator[asyncio.subprocess.Process]:
    """A ready worker in a process of its own, killed in the end."""
    async with started(sys.executable, "-c", WORKER, root, name, model) as process:
        assert await next_line(process) == "ready\n"
        yield process


def row(name: str) -> str:
    return f"#workers tbody tr:has(th:has-text('{name}'))"


async def shows(page: Page, selector: str, text: str) -> None:
    await expect(page.locator(selector).first).to_contain_text(text)


async def test_workers_come_drain_freeze_and_die(browser: Browser, root: str) -> None:
    async with (
        serve("--discovery", root) as served,
        page_of(browser, served.url, complaints=[LOST]) as page,
        registry.open(root, address="127.0.0.1", instance_id="slow") as opened,
    ):
        await shows(page, "#identity", f"prod/decode in {root}")
        await shows(page, "#connection", "Live")
        await expect(page.locator("#no-workers")).to_be_visible()
        slow = await opened.register_instance("prod", "decode")
        await shows(page, row("slow"), "Not ready")
        await shows(page, row("slow"), "it has not called set_ready")
        slow.set_ready("ready")
        await shows(page, row("slow"), "Ready")
        await shows(page, "#events li:has-text('slow')", "slow came")
        async with worker(root, "fast", "llama-70b") as fast:
            await shows(page, row("fast") + " td[data-label='Model']", "llama-70b")
            await shows(page, "#ready", "2")
            os.kill(fast.pid, signal.SIGSTOP)
            await shows(page, row("fast"), "Unreachable")
            await shows(page, "#unreachable", "1")
            os.kill(fast.pid, signal.SIGCONT)
            await shows(page, row("fast"), "Ready")
            await shows(page, "#events li:has-text('fast')", "reachable again")
            slow.set_ready("draining")
            await shows(page, row("slow"), "Draining")
            await slow.close()
            await expect(page.locator(row("slow"))).to_have_count(0)
            await shows(page, "#ready", "1")
            fast.kill()  # no other worker is there that would remove what it left
            await shows(page, row("fast"), "Absent")
            await shows(page, row("fast"), "its process has ended")
            await shows(page, "#events li:has-text('fast')", "is no instance any more")
            await shows(page, "#ready", "0")
        served.process.send_signal(signal.SIGTERM)
        await shows(page, "#connection", "Connection lost")


async def test_a_thousand_workers_are_found_by_words(browser: Browser, tmp_path: Path) -> None:
    """None of them answers: a list says who is there."""
    hosts = ",".join(f"127.0.{n // 250 + 1}.{n % 250 + 1}:9" for n in range(1000))
    async with serve("--discovery", f"static://{hosts}") as served, page_of(browser, served.url) as page:
        await expect(page.locator("#unreachable")).to_have_text("1,000")
        await expect(page.locator("#workers tbody tr")).to_have_count(50)
        await page.fill("#filter", "127.0.4.250")
        await expect(page.locator("#workers tbody tr")).to_have_count(1)
        await shows(page, "#workers tbody tr", "Connection refused")


async def test_a_phone_needs_no_sideways_scrolling(browser: Browser, root: str, tmp_path: Path) -> None:
    async with (
        serve("--discovery", root) as served,
        worker(root, "w" * 100, "m" * 200) as process,
        page_of(browser, served.url, size=PHONE, dark=True) as page,
    ):
        await shows(page, "#ready", "1")
        assert await overflow(page) == 0
        with owner(tmp_path / "root", "dead"):
            await shows(page, row("dead"), "nothing listens on port 80")
            process.kill()  # or it would remove what the other one leaves
            await process.wait()
        await shows(page, row("dead"), "its process has ended")
        assert await overflow(page) == 0


async def test_long_names_leave_room_for_the_rest(browser: Browser, root: str, tmp_path: Path) -> None:
    async with (
        serve("--discovery", root) as served,
        worker(root, "-".join(["w" * 20] * 9), "m" * 200),
        page_of(browser, served.url) as page,
    ):
        await shows(page, "#ready", "1")
        with owner(tmp_path / "root", "dead"):
            await shows(page, row("dead"), "nothing listens on port 80")
            assert await wider_tables(page) == []


async def test_names_are_text_whatever_they_are(browser: Browser, root: str) -> None:
    """A model's name comes from a worker."""
    script = "<img src=x onerror=alert(1)>"
    async with (
        serve("--discovery", root) as served,
        worker(root, "w-1", script),
        page_of(browser, served.url) as page,
    ):
        await shows(page, row("w-1"), script)
        assert await page.locator("#workers img").count() == 0


async def test_the_keyboard_sorts_and_filters(browser: Browser, root: str) -> None:
    async with (
        serve("--discovery", root) as served,
        worker(root, "beta"),
        worker(root, "alpha"),
        page_of(browser, served.url) as page,
    ):
        await shows(page, "#ready", "2")
        heading = page.locator("#workers th button:has-text('Worker')")
        await heading.focus()
        await page.keyboard.press("Enter")
        names = page.locator("#workers tbody th div > span:first-child")
        await expect(names).to_have_text(["alpha", "beta"])
        await page.keyboard.press("Enter")
        await expect(names).to_have_text(["beta", "alpha"])
        await page.fill("#filter", "ready alpha")
        await expect(names).to_have_text(["alpha"])
