"""The places where workers and their watchers can meet. A new source joins the suite by one more line here."""

import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

import discovery
import registry
from discovery import MetadataClient, SourceDiscovery
from discovery.metadata.silence import SilenceTimings
from registry import ServiceRegistry

OpenRegistry: TypeAlias = Callable[..., ServiceRegistry]


URLS = {"memory": "memory://UNIQUE", "filesystem": "file://TMP"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Over our own sources, or over the one that --contract-url names."""
    if "place" in metafunc.fixturenames:
        given = metafunc.config.getoption("--contract-url")
        metafunc.parametrize("place", ["given"] if given else list(URLS))


@pytest.fixture
def url(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a registry announces and a discovery looks: for each test another one."""
    pattern = URLS.get(place) or request.config.getoption("--contract-url")
    return str(pattern).replace("UNIQUE", uuid.uuid4().hex).replace("TMP", str(tmp_path))


@pytest.fixture
def worker_host() -> str:
    """Where a worker may listen that is not ours."""
    return "127.0.0.1"


@pytest.fixture
async def service(url: str) -> AsyncIterator[SourceDiscovery]:
    client = MetadataClient(timeout=1.0, silence=SilenceTimings(wait=1.0))
    async with SourceDiscovery(discovery.opening.open_source(url), client=client) as opened:
        yield opened


@pytest.fixture
async def open_registry(url: str) -> AsyncIterator[OpenRegistry]:
    """`open_registry(**options)`: one more worker's registry at the meeting place; closed at the end."""
    opened: list[ServiceRegistry] = []

    def open_one(**options: object) -> ServiceRegistry:
        opened.append(registry.open(url, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for one in opened:
        await one.aclose()
