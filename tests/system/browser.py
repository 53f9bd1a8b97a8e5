"""A headless Chromium of the distribution, and what every page of ours has to hold in it."""

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from playwright.async_api import Browser, Page, Request, async_playwright, expect

_ARGUMENTS: Final = (
    "--no-sandbox",  # the tests run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP *.example 127.0.0.1",  # as a site would that rebinds its name to this machine
)
PATIENCE: Final = 90_000.0
"""Milliseconds that an expectation may take, on a busy machine."""
DESK: Final = (1280, 860)
PHONE: Final = (390, 844)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    found = shutil.which("chromium")
    assert found is not None, "there is no chromium: tests.system.building installs it"
    expect.set_options(timeout=PATIENCE)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=found, args=list(_ARGUMENTS), timeout=PATIENCE
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def page_of(
    browser: Browser,
    url: str,
    *,
    size: tuple[int, int] = DESK,
    dark: bool = False,
    complaints: Sequence[str] = (),
    password: str | None = None,
) -> AsyncIterator[Page]:
    """The page at `url`. When it is left: its console said nothing but `complaints`, and it asked no other host.

    What breaks the content security policy is said on the console too. `password`: what its reader types if asked.
    """
    said: list[str] = []
    hosts: set[str] = set()

    def requested(request: Request) -> None:
        hosts.add(urlsplit(request.url).netloc)

    context = await browser.new_context(
        color_scheme="dark" if dark else "light",
        viewport={"width": size[0], "height": size[1]},
        device_scale_factor=2 if size == PHONE else 1,
        reduced_motion="reduce",
        locale="en-GB",
        timezone_id="UTC",
        http_credentials=None if password is None else {"username": "reader", "password": password},
    )
    try:
        page = await context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", requested)
        await page.goto(url)
        yield page
        unexpected = [line for line in said if not any(known in line for known in complaints)]
        assert not unexpected, unexpected
        assert hosts == {urlsplit(url).netloc}
    finally:
        await context.close()


async def overflow(page: Page) -> int:
    """Pixels by which the page is wider than its window: 0, or a phone scrolls sideways."""
    width: int = await page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return width


async def wider_tables(page: Page) -> list[str]:
    """The tables that are wider than their place: they scroll sideways, and what is on the right is not seen."""
    found: list[str] = await page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter((place) => place.scrollWidth > place.clientWidth)"
        ".map((place) => place.firstElementChild.id)"
    )
    return found


async def take_pictures(browser: Browser, url: str, name: str, folder: Path) -> None:
    """`name`-light.png, -dark.png and -phone.png of a page that shows live data."""
    for look, size, dark in (("light", DESK, False), ("dark", DESK, True), ("phone", PHONE, False)):
        async with page_of(browser, url, size=size, dark=dark) as page:
            await page.wait_for_selector("#connection[data-state=live]")
            await page.wait_for_timeout(1500)
            await page.screenshot(path=folder / f"{name}-{look}.png", full_page=look == "light")
