"""Every page of the documentation site in a real Chromium: nothing fails, nothing comes from elsewhere, nothing sticks out."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.system.browser import DESK, PHONE, chromium, page_of

ROOT = Path(__file__).parents[2]
STICKING_OUT = """() => {
  const width = document.documentElement.clientWidth;
  const scrolls = (one) => one && (getComputedStyle(one).overflowX !== 'visible' || scrolls(one.parentElement));
  return [...document.querySelectorAll('.md-content *')]
    .filter((one) => one.getBoundingClientRect().right > width + 2 && !scrolls(one))
    .map((one) => one.textContent.slice(0, 80));
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


class Quiet(SimpleHTTPRequestHandler):
    """Says nothing of each request."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


async def test_every_page_on_a_phone(site: Path, address: str) -> None:
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    names.remove("404.html")  # it is served for what is not there, with absolute addresses
    assert len(names) > 40
    async with chromium() as browser, page_of(browser, f"{address}/index.html", size=PHONE) as page:
        for name in names:
            answer = await page.goto(f"{address}/{name}")
            assert answer is not None
            assert answer.status == 200, name
            assert await page.locator("article h1").first.is_visible(), name
            assert await page.evaluate(STICKING_OUT) == [], name


@pytest.mark.parametrize("opened", ["from a server", "from a folder"])
async def test_the_search_finds_a_flag(site: Path, address: str, opened: str) -> None:
    start = f"{address}/index.html" if opened == "from a server" else (site / "index.html").as_uri()
    async with chromium() as browser, page_of(browser, start, size=DESK) as page:
        search = page.get_by_role("textbox", name="Search")
        await search.click()  # loads the index; what is typed before that is there is not searched for
        await expect(page.locator(".md-search-result__meta")).not_to_contain_text("Initializing")
        await search.fill("--drain-timeout")
        await search.press("End")  # the theme searches when a key is released
        await expect(page.locator(".md-search-result__list")).to_contain_text("drain-timeout")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_the_picture_of_the_start_page_follows_the_theme(address: str, dark: bool) -> None:
    async with chromium() as browser, page_of(browser, f"{address}/index.html", dark=dark) as page:
        shown = page.locator('a[href="pages.html"] > img:visible')
        await expect(shown).to_have_count(1)
        assert ("dark" if dark else "light") in (await shown.get_attribute("src") or "")


async def test_no_diagram_is_cut_beside_both_side_bars(site: Path, address: str) -> None:
    cut = "() => [...document.querySelectorAll('pre code')].filter((one) => one.scrollWidth > one.clientWidth + 1 && /[─│]/.test(one.textContent)).map((one) => one.textContent)"
    async with chromium() as browser:
        for name in ("picker.html", "shutdown.html", "dispatcher.html", "kubernetes.html", "readme.html"):
            async with page_of(browser, f"{address}/{name}", size=(1400, 900)) as page:
                assert await page.evaluate(cut) == [], name
