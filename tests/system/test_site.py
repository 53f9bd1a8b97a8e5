"""The documentation site: it builds without a warning, says what it must, and works in a real Chromium."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.async_api import expect

from adsum.__main__ import PROGRAMS
from tests.system.browser import DESK, PHONE, chromium, page_of

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""What a browser loads by itself: element and attribute."""
RELATIONS = {"canonical", "prev", "next"}
"""Links in the head that a browser does not load."""

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
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        build, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout
    return folder


class Assets(HTMLParser):
    """Collects what the page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address = given.get(LOADED.get(tag, ""))
        if address and given.get("rel") not in RELATIONS:
            self.found.append(address)


def pages(site: Path) -> Iterator[tuple[str, str]]:
    for page in sorted(site.rglob("*.html")):
        yield page.relative_to(site).as_posix(), page.read_text()


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    count = 0
    for name, text in pages(site):
        assets = Assets()
        assets.feed(text)
        assert not [address for address in assets.found if re.match(r"\w+:|//", address)], name
        count += 1
    assert count > 20
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text()), sheet.name


def test_every_program_and_command_is_in_the_reference(site: Path) -> None:
    text = (site / "reference" / "programs.html").read_text()
    for program in PROGRAMS:
        assert f'id="adsum-{program}"' in text
    for heading in ("adsum-discovery-explain", "adsum-epp-envoy-config", "adsum-dispatcher-submit"):
        assert f'id="{heading}"' in text
    assert "\\|" not in text
    assert "<code>--transport http2|grpc</code>" in text
    for flag in ("--config-file", "--drain-timeout", "--endpoint"):
        assert flag in text
    told = dict(re.findall(r"<td><code>([^<]+)</code></td>\s*<td>(.*?)</td>", text, re.DOTALL))
    assert [argument for argument, about in told.items() if not about.strip()] == []
    assert "default: 8080" in told["--listen-port PORT"]  # of a command with a formatter of its own


def test_the_api_is_there(site: Path) -> None:
    for page, names in {
        "discovery-api": (
            "discovery.open",
            "discovery.ServiceDiscovery.watch",
            "discovery.wait_for_instances",
        ),
        "registry-api": ("registry.open", "registry.InstanceHandle.set_ready"),
        "epp-api": ("epp.extension.Scorer.score",),
        "dispatcher-api": ("dispatcher.extension.DispatchGate",),
    }.items():
        text = (site / "reference" / f"{page}.html").read_text()
        for name in names:
            assert f'id="{name}"' in text


def test_lists_and_blocks_are_read_as_on_github(site: Path) -> None:
    """Python-Markdown wants an empty line before a list, and four spaces before what belongs to an item."""
    for name, text in pages(site):
        prose = re.sub(r"<(pre|code|script)\b.*?</\1>", "", text, flags=re.DOTALL)
        for paragraph in re.findall(r"<p>(.*?)</p>", prose, re.DOTALL):
            assert not re.search(r"^\s*(?:[-*]|\d+\.) ", paragraph, re.MULTILINE), (
                f"{name}: {paragraph[:200]}"
            )
            assert "```" not in paragraph, f"{name}: {paragraph[:200]}"
            assert not re.search(r"^\|.*\|$", paragraph, re.MULTILINE), f"{name}: {paragraph[:200]}"


def test_a_long_name_breaks_behind_an_underscore(site: Path) -> None:
    """And nowhere else; the search finds it whole."""
    page = (site / "metrics.html").read_text()
    assert '<code class="long">llm_<wbr>d_<wbr>epp_<wbr>request_<wbr>running</code>' in page
    assert '<code class="long">target_<wbr>model_<wbr>name</code>' in page
    assert "llm_d_epp_request_running" in (site / "search" / "search_index.json").read_text()


def test_every_field_of_the_configuration_files_is_in_the_reference(site: Path) -> None:
    text = (site / "reference" / "picker-configuration.html").read_text()
    for name in (
        "flowControl.priorityBands[]",
        "outlierDetection",
        "least-cost-scorer",
        "prefix-cache-affinity-filter",
    ):
        assert name in text
    told = fields(text)
    assert (
        "<small>duration, ≥ 100ms, ≤ 24h · default <code>30s</code></small><br>" in told["baseEjectionTime"]
    )
    assert "· <strong>required</strong></small>" in told["apiVersion"]
    assert "<code>Pass</code> or <code>Fail</code> · default" in told["onMissing"]  # and not an empty word
    assert 'href="#endpoint-attribute-filter-algorithm"' in text  # the sections in parameters too
    text = (site / "reference" / "dispatcher-configuration.html").read_text()
    for name in ("queues[].intake", "prometheus-budget", "endpoint-scrape", "max_count_per_pod"):
        assert name in text
    told = fields(text)
    assert "≤ 10MiB · default <code>10MiB</code>" in told["max_payload"]
    assert "<small>duration, ≥ 1s, ≤ 15s · default <code>15s</code></small>" in text  # `lease` of a queue
    of_concurrency = "<small>duration, ≥ 300ms, ≤ 15s · default <code>15s</code></small>"
    assert of_concurrency in told["lease"]


def fields(text: str) -> dict[str, str]:
    """What the reference says of each field, the last one of a name; none is without a meaning."""
    told = dict(re.findall(r"<td><code>(\w+)</code></td>\s*<td>(.*?)</td>", text, re.DOTALL))
    assert len(told) > 40
    assert [name for name, about in told.items() if about.endswith("<br>")] == []
    return told


def test_a_page_that_was_filled_does_not_say_that_it_is_empty(site: Path) -> None:
    filled = sorted((site / "reference").glob("*.html"))
    assert len(filled) == len(list((ROOT / "docs" / "reference").glob("*.md")))
    for page in filled:
        assert "fills this page" not in page.read_text(), page.name


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
